"""Whether the credentials that a kubeconfig holds have expired, since when, and how they are renewed."""

import base64
import json
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import yaml
from cryptography import x509

from stoker.kube.kubectl import kubectl

WRONG = (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError, yaml.YAMLError)
"""What reading an entry that makes no sense raises: then nothing is known of it."""
EKS = re.compile(r"^arn:[\w-]+:eks:([\w-]+):\d+:cluster/([\w-]+)$")
GKE = re.compile(r"^gke_([\w:.-]+)_([\w-]+)_([\w-]+)$")


@dataclass(frozen=True, kw_only=True, slots=True)
class Expired:
    problem: str
    remedy: str


def expired(files: Sequence[Path], context: str | None, *, in_pod: Path) -> Expired | None:
    """Of a context's user; None: the pod's own service account. None where nothing is known to have expired."""
    now = datetime.now(UTC)
    try:
        if context is None:
            what, end, remedy = "the token of this pod's service account", _pod_end(in_pod), "Start the pod again"
        else:
            user, folder, server = _entry(files, context)
            kind, end = _end(user, folder)
            what, remedy = f"the {kind} of context {context}", _renewal(context, server, user)
        if end is None or end >= now:
            return None
        since = f"{end:%Y-%m-%d %H:%M} UTC, {_ago((now - end).total_seconds())} ago"
        return Expired(problem=f"{what} expired on {since}", remedy=remedy)
    except WRONG:
        return None


def certificate_end(pem: bytes) -> datetime:
    """Raises ValueError where it is no certificate."""
    return x509.load_pem_x509_certificate(pem).not_valid_after_utc


def token_end(token: str) -> datetime | None:
    """Of a JSON web token; None for any other, or one without an end."""
    try:
        body = token.strip().split(".")[1]
        end = json.loads(base64.urlsafe_b64decode(body + "=" * (-len(body) % 4))).get("exp")
        return None if end is None else datetime.fromtimestamp(float(end), UTC)
    except (*WRONG, IndexError, OverflowError):
        return None


def _end(user: Mapping[str, Any], folder: Path) -> tuple[str, datetime | None]:
    """What a user logs in with, and when that ends."""
    if certificate := _certificate(user, folder):
        return "client certificate", certificate_end(certificate)
    token = (folder / user["tokenFile"]).read_text() if "tokenFile" in user else str(user["token"])
    return "token", token_end(token)


def _pod_end(folder: Path) -> datetime | None:
    return token_end((folder / "token").read_text())


def _ago(seconds: float) -> str:
    for length, unit in ((86400, "day"), (3600, "hour"), (60, "minute")):
        if seconds >= length:
            number = int(seconds // length)
            return f"{number} {unit}{'s' * (number != 1)}"
    return "a moment"


def _entry(files: Sequence[Path], context: str) -> tuple[Mapping[str, Any], Path, str]:
    """The user of a context, the folder that its paths are relative to, and the server. The first file counts."""
    documents = [(path.parent, yaml.safe_load(path.read_text()) or {}) for path in files]
    chosen = _named(documents, "contexts", context)[1]["context"]
    folder, user = _named(documents, "users", chosen["user"])
    server = _named(documents, "clusters", chosen["cluster"])[1]["cluster"].get("server", "")
    return user.get("user") or {}, folder, str(server)


def _named(documents: Sequence[tuple[Path, Any]], kind: str, name: str) -> tuple[Path, Any]:
    for folder, document in documents:
        for one in document.get(kind) or []:
            if one.get("name") == name:
                return folder, one
    raise KeyError(name)


def _certificate(user: Mapping[str, Any], folder: Path) -> bytes | None:
    if data := user.get("client-certificate-data"):
        return base64.b64decode(data)
    path = user.get("client-certificate")
    return (folder / path).read_bytes() if path else None


def _renewal(context: str, server: str, user: Mapping[str, Any]) -> str:
    """What fetches new ones, where the kind of cluster can be told."""
    if found := EKS.match(context):
        return f"Run: aws eks update-kubeconfig --region {found[1]} --name {found[2]}"
    if ".eks.amazonaws.com" in server:
        return "Run: aws eks update-kubeconfig --name CLUSTER"
    if found := GKE.match(context):
        project, location, name = found[1], found[2], found[3]
        return f"Run: gcloud container clusters get-credentials {name} --location {location} --project {project}"
    if ".azmk8s.io" in server:
        return f"Run: az aks get-credentials --resource-group GROUP --name {shlex.quote(context)}"
    if "exec" in user:
        return f"Log in again with what the kubeconfig names: {user['exec']['command']}"
    return f"Ask your cluster admin for a new kubeconfig, then try: {kubectl(context)} auth whoami"
