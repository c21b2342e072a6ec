"""Credentials for a registry: from Docker's config.json and its credential helpers. They are never printed."""

import base64
import binascii
import json
import os
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from stoker.image.reference import DEFAULT_REGISTRY
from stoker.spec.bounded import read_json
from stoker.spec.errors import UserError

DEFAULT_KEY = "https://index.docker.io/v1/"  # the key that `docker login` without a host writes
TOKEN_USER = "<token>"  # the helpers' protocol: the secret is an identity token, not a password
NOT_FOUND = "not found"  # the helpers' protocol: the error text for a registry without credentials
HELPER_TIMEOUT_S = 60  # a helper may have to ask a cloud


@dataclass(frozen=True, kw_only=True, slots=True)
class RegistryLogin:
    user: str = ""
    password: str = field(default="", repr=False)
    identity: str = field(default="", repr=False)
    """A token that is exchanged for others."""

    def basic(self) -> str:
        return "Basic " + base64.b64encode(f"{self.user}:{self.password}".encode()).decode()


def login(registry: str) -> RegistryLogin | None:
    """The credentials that `docker pull` would use; None: anonymous."""
    file = Path(os.environ.get("DOCKER_CONFIG") or Path.home() / ".docker") / "config.json"
    config = _read(file)
    keys = [DEFAULT_KEY] if registry == DEFAULT_REGISTRY else [registry, f"https://{registry}", f"http://{registry}"]
    helpers = _mapping(config, "credHelpers")
    helper = next((helpers[key] for key in [registry, *keys] if key in helpers), config.get("credsStore"))
    if helper and (answer := _ask(str(helper), keys[0], file)):
        return answer
    auths = _mapping(config, "auths")
    entry = next((auths[key] for key in [*keys, *(f"{key}/" for key in keys)] if key in auths), None)
    return _from_entry(entry, registry, file) if entry else None


def _read(file: Path) -> Mapping[str, Any]:
    try:
        config = read_json(file)
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as e:
        raise UserError(f"{file} cannot be read: {type(e).__name__}", remedy="Fix it, or run: docker login") from None
    return config if isinstance(config, dict) else {}


def _mapping(config: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    values = config.get(key)
    return values if isinstance(values, dict) else {}


def _ask(helper: str, key: str, file: Path) -> RegistryLogin | None:
    """The helpers' protocol: `get`, with the registry on stdin, prints JSON. Its output is never shown."""
    program = shutil.which(f"docker-credential-{helper}")
    if program is None:
        raise UserError(
            f"{file} names the helper docker-credential-{helper}, which is not installed",
            remedy="Install it, or remove it from that file and run: docker login",
        )
    try:
        done = subprocess.run([program, "get"], input=key, capture_output=True, text=True, timeout=HELPER_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        raise UserError(
            f"docker-credential-{helper} gave no answer in {HELPER_TIMEOUT_S} seconds",
            remedy=f"Try it: echo {key} | {program} get",
        ) from None
    if done.returncode:
        if NOT_FOUND in (done.stdout + done.stderr).lower():
            return None
        raise UserError(
            f"docker-credential-{helper} failed with code {done.returncode}",
            remedy=f"Try it: echo {key} | {program} get",
        )
    try:
        answer = json.loads(done.stdout)
        user, secret = str(answer["Username"]), str(answer["Secret"])
    except (ValueError, KeyError, TypeError):
        raise UserError(f"docker-credential-{helper} did not print credentials", remedy="Install a newer one") from None
    return RegistryLogin(identity=secret) if user == TOKEN_USER else RegistryLogin(user=user, password=secret)


def _from_entry(entry: object, registry: str, file: Path) -> RegistryLogin | None:
    damaged = UserError(f"{file}: the entry for {registry} is damaged", remedy=f"Run: docker login {registry}")
    if not isinstance(entry, dict):
        raise damaged
    if identity := entry.get("identitytoken"):
        return RegistryLogin(identity=str(identity))
    if entry.get("username"):
        return RegistryLogin(user=str(entry["username"]), password=str(entry.get("password", "")))
    if not entry.get("auth"):
        return None
    try:
        user, _, password = base64.b64decode(entry["auth"], validate=True).decode().partition(":")
    except (binascii.Error, ValueError, TypeError):
        raise damaged from None
    return RegistryLogin(user=user, password=password.rstrip("\0"))
