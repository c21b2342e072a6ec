"""Connects to a cluster: chooses the context, logs in, and explains what is missing."""

import difflib
from pathlib import Path

import httpx2

from stoker.kube import credentials
from stoker.kube.cluster import Cluster
from stoker.kube.credentials import CredentialsError
from stoker.kube.errors import ClusterError, NotLoggedIn, Unreachable
from stoker.kube.expiry import expired
from stoker.kube.kubeconfig import Kubeconfig, location, read_kubeconfig
from stoker.kube.kubectl import kubectl
from stoker.kube.session import Session

IN_POD = Path("/var/run/secrets/kubernetes.io/serviceaccount")


def connect(context: str | None = None, namespace: str | None = None) -> Cluster:
    """None: the kubeconfig's current context, and the context's own namespace. Raises ClusterError."""
    kubeconfig = read_kubeconfig()
    chosen = _choose(kubeconfig, context)
    name = f"context {chosen}" if chosen else "this pod's cluster"
    session = Session(
        lambda: _log_in(chosen, name), name=name, expired=lambda: expired(read_kubeconfig(), chosen, in_pod=IN_POD)
    )
    return Cluster(session, context=chosen, namespace=namespace or _namespace(kubeconfig, chosen))


def namespace_of(context: str | None) -> str:
    """The namespace that `connect` would use, without a request to the cluster."""
    kubeconfig = read_kubeconfig()
    name = context or kubeconfig.current
    if name is None and not kubeconfig.namespaces and IN_POD.is_dir():
        return _namespace(kubeconfig, None)
    return kubeconfig.namespaces.get(name or "") or "default"


def _choose(kubeconfig: Kubeconfig, wanted: str | None) -> str | None:
    """None: the pod's own service account."""
    if not kubeconfig.namespaces and wanted is None and IN_POD.is_dir():
        return None
    if not kubeconfig.files:
        raise Unreachable(
            f"there is no kubeconfig ({location()}), so no cluster is known",
            remedy="Name the file with: export KUBECONFIG=FILE, or fetch one, such as with: "
            "aws eks update-kubeconfig --name CLUSTER",
        )
    files = ", ".join(map(str, kubeconfig.files))
    name = wanted or kubeconfig.current
    if name is None:
        raise ClusterError(
            f"{files} names no current context",
            remedy=f"Set on.context to one of: {', '.join(kubeconfig.namespaces) or '(it has no contexts)'}",
        )
    if name not in kubeconfig.namespaces:
        near = difflib.get_close_matches(name, kubeconfig.namespaces, n=1, cutoff=0.4)
        known = ", ".join(list(kubeconfig.namespaces)[:10]) or "none"
        remedy = f"Did you mean {near[0]}?" if near else f"There are: {known}"
        raise ClusterError(f"{files} has no context '{name}'", remedy=remedy)
    return name


def _namespace(kubeconfig: Kubeconfig, context: str | None) -> str:
    if context is not None:
        return kubeconfig.namespaces[context] or "default"
    return (IN_POD / "namespace").read_text().strip()


def _log_in(context: str | None, name: str) -> httpx2.Client:
    """The kubeconfig and the pod's token are read again each time: they may have been renewed."""
    try:
        given = (
            credentials.of_pod(IN_POD) if context is None else credentials.of_context(read_kubeconfig().entry(context))
        )
        return given.client()
    except (CredentialsError, OSError, ValueError, httpx2.InvalidURL) as e:
        reason = " ".join(str(e).split()) or type(e).__name__
        if "expired" in reason.lower():
            raise NotLoggedIn(
                f"the login for {name} has expired: {reason}",
                remedy="Log in again, such as with: aws sso login, gcloud auth login or az login",
            ) from e
        raise NotLoggedIn(
            f"the kubeconfig gives no credentials for {name}: {reason}",
            remedy=f"Try: {kubectl(context)} auth whoami",
        ) from e
