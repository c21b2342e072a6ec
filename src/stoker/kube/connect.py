"""From a kubeconfig, or a pod's service account, to a cluster. kr8s reads the credentials, however they are kept."""

import asyncio
import difflib
import os
import tempfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import yaml
from kr8s._auth import KubeAuth

from stoker.kube.cluster import Cluster
from stoker.kube.expiry import expired
from stoker.kube.kubectl import kubectl
from stoker.kube.refusals import LoggedOut, Unreachable
from stoker.kube.session import Session
from stoker.spec.bounded_yaml import BoundedLoader
from stoker.spec.errors import UserError
from stoker.spec.regular import read_text

LARGEST_CONFIG = 4 << 20  # bytes; one cluster with its certificates takes some 5 KiB
PATIENCE = 120.0  # seconds: a login command may open a browser
IN_POD = Path("/var/run/secrets/kubernetes.io/serviceaccount")


@dataclass(frozen=True, kw_only=True, slots=True)
class Contexts:
    """What the kubeconfig offers."""

    files: tuple[Path, ...]
    current: str | None
    namespaces: dict[str, str | None]
    """Context -> its default namespace."""


def connect(context: str | None = None, namespace: str | None = None) -> Cluster:
    """None: the kubeconfig's current context, and the context's own namespace. Raises UserError."""
    known = contexts()
    chosen = _choose(known, context)
    who = f"context {chosen}" if chosen else "this pod's cluster"
    session = Session(
        lambda: _credentials(chosen, who), who=who, expired=lambda: expired(known.files, chosen, in_pod=IN_POD)
    )
    return Cluster(session, context=chosen, namespace=namespace or _namespace(known, chosen))


def contexts() -> Contexts:
    """Of all the files that KUBECONFIG names, or ~/.kube/config."""
    words = os.environ.get("KUBECONFIG") or "~/.kube/config"
    named = [Path(word).expanduser() for word in words.split(os.pathsep) if word]
    files = tuple(path for path in named if path.is_file())
    current: str | None = None
    namespaces: dict[str, str | None] = {}
    for path in files:
        values = _read(path)
        current = current or values.get("current-context") or None
        for one in values.get("contexts") or []:
            namespaces.setdefault(one["name"], (one.get("context") or {}).get("namespace"))
    return Contexts(files=files, current=current, namespaces=namespaces)


def _choose(known: Contexts, wanted: str | None) -> str | None:
    """None: the pod's own service account."""
    if not known.namespaces and wanted is None and IN_POD.is_dir():
        return None
    if not known.files:
        where = os.environ.get("KUBECONFIG") or "~/.kube/config"
        raise Unreachable(
            f"there is no kubeconfig ({where}), so no cluster is known",
            remedy="Name the file with: export KUBECONFIG=FILE, or fetch one, such as with: "
            "aws eks update-kubeconfig --name CLUSTER",
        )
    name = wanted or known.current
    if name is None:
        raise UserError(
            f"{_files(known)} names no current context",
            remedy=f"Set on.context to one of: {', '.join(known.namespaces) or 'none is there'}",
        )
    if name not in known.namespaces:
        near = difflib.get_close_matches(name, known.namespaces, n=1, cutoff=0.4)
        there = ", ".join(list(known.namespaces)[:10]) or "none"
        remedy = f"Did you mean {near[0]}?" if near else f"There are: {there}"
        raise UserError(f"{_files(known)} has no context '{name}'", remedy=remedy)
    return name


def namespace_of(context: str | None) -> str:
    """The one that `connect` would mean, without asking any cluster."""
    known = contexts()
    name = context or known.current
    if name is None and not known.namespaces and IN_POD.is_dir():
        return _namespace(known, None)
    return known.namespaces.get(name or "") or "default"


def _files(known: Contexts) -> str:
    return ", ".join(map(str, known.files))


def _namespace(known: Contexts, context: str | None) -> str:
    if context is not None:
        return known.namespaces[context] or "default"
    return (IN_POD / "namespace").read_text().strip()


def _read(path: Path) -> dict[str, Any]:
    try:
        values = yaml.load(read_text(path, most=LARGEST_CONFIG), BoundedLoader) or {}
        _check(values)
    except OSError as e:
        raise UserError(f"cannot read the kubeconfig {path}: {e.strerror}", remedy="Check its permissions") from e
    except (yaml.YAMLError, ValueError) as e:
        raise UserError(f"{path} is no kubeconfig: {str(e).splitlines()[0]}", remedy="Restore it") from e
    found: dict[str, Any] = values
    return found


def _check(values: Any) -> None:
    """Raises ValueError. The rest is looked at when it is used."""
    if not isinstance(values, dict):
        raise ValueError("it has no contexts")
    if not isinstance(values.get("current-context") or "", str):
        raise ValueError(f"its current-context is {values['current-context']}, which is no name")
    found = values.get("contexts") or []
    if not isinstance(found, list):
        raise ValueError("its contexts are no list")
    for one in found:
        if not isinstance(one, dict) or not isinstance(one.get("name"), str):
            raise ValueError("one of its contexts has no name")
        inside = one.get("context") or {}
        if not isinstance(inside, dict) or not isinstance(inside.get("namespace") or "", str):
            raise ValueError(f"its context {one['name']} is not {{cluster: …, user: …, namespace: …}}")


def _credentials(context: str | None, who: str) -> httpx.Client:
    """A client that is logged in. In a thread of its own: there may be an event loop in this one."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(asyncio.run, _log_in(context, who)).result()


async def _log_in(context: str | None, who: str) -> httpx.Client:
    auth = KubeAuth(context=context, namespace="default")
    try:
        await asyncio.wait_for(auth.reauthenticate(), PATIENCE)
        return httpx.Client(
            base_url=auth.server,
            headers={"User-Agent": "stoker"}
            | ({"Authorization": f"Bearer {str(auth.token).strip()}"} if auth.token else {}),
            verify=await auth.ssl_context(),  # type: ignore[no-untyped-call]
            timeout=httpx.Timeout(60, connect=10),
            limits=httpx.Limits(max_connections=None, max_keepalive_connections=20),  # a command in a pod holds one
            proxy=auth.proxy,
        )
    except (RuntimeError, OSError, ValueError, LookupError, TypeError, AttributeError, httpx.InvalidURL) as e:
        words = " ".join(str(e).split()) or type(e).__name__
        reason = f"an entry lacks {words}" if isinstance(e, KeyError) and " " not in words else words
        if "expired" in reason.lower():
            raise LoggedOut(
                f"the login for {who} has expired: {reason}",
                remedy="Log in again, such as with: aws sso login, gcloud auth login or az login",
            ) from e
        raise LoggedOut(
            f"the kubeconfig gives no credentials for {who}: {reason}",
            remedy=f"Try: {kubectl(context)} auth whoami",
        ) from e
    finally:
        _forget_files(auth)


def _forget_files(auth: KubeAuth) -> None:
    """kr8s copies keys that a kubeconfig holds itself into files of the temporary folder, and leaves them there."""
    texts = "".join(path.read_text() for path in contexts().files)
    for file in (auth.client_key_file, auth.client_cert_file, auth.server_ca_file):
        path = Path(str(file))
        if file and path.parent == Path(tempfile.gettempdir()) and path.name not in texts:
            path.unlink(missing_ok=True)
