"""Finds out whether the credentials in a kubeconfig have expired, since when, and how to renew them."""

import base64
import json
import re
import shlex
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from cryptography import x509

from stoker.kube.credentials import CredentialsError, pem
from stoker.kube.kubeconfig import ContextEntry, Entry, Kubeconfig
from stoker.kube.kubectl import kubectl

MALFORMED = (OSError, ValueError, LookupError, TypeError, AttributeError, OverflowError, CredentialsError)
"""What reading a malformed entry or token raises: its expiry is unknown then."""
EKS = re.compile(r"^arn:[\w-]+:eks:([\w-]+):\d+:cluster/([\w-]+)$")
GKE = re.compile(r"^gke_([\w:.-]+)_([\w-]+)_([\w-]+)$")


@dataclass(frozen=True, kw_only=True, slots=True)
class Expired:
    problem: str
    remedy: str


def expired(kubeconfig: Kubeconfig, context: str | None, *, in_pod: Path) -> Expired | None:
    """The expired credentials of a context, or of the pod where context is None; None if nothing is known to be."""
    now = datetime.now(UTC)
    try:
        if context is None:
            credential, end = "the token of this pod's service account", token_end((in_pod / "token").read_text())
            remedy = "Restart the pod"
        else:
            entry = kubeconfig.entry(context)
            kind, end = _end(entry.user, entry.user_folder)
            credential, remedy = f"the {kind} of context {context}", _renewal(context, entry)
        if end is None or end >= now:
            return None
        since = f"{end:%Y-%m-%d %H:%M} UTC, {_ago((now - end).total_seconds())} ago"
        return Expired(problem=f"{credential} expired on {since}", remedy=remedy)
    except MALFORMED:
        return None


def certificate_end(certificate: bytes) -> datetime:
    """When a PEM certificate expires. Raises ValueError if it is not a certificate."""
    return x509.load_pem_x509_certificate(certificate).not_valid_after_utc


def token_end(token: str) -> datetime | None:
    """When a JSON web token expires; None for other tokens, and for one that does not."""
    try:
        body = token.strip().split(".")[1]
        end = json.loads(base64.urlsafe_b64decode(body + "=" * (-len(body) % 4))).get("exp")
        return None if end is None else datetime.fromtimestamp(float(end), UTC)
    except MALFORMED:
        return None


def _end(user: Entry, folder: Path) -> tuple[str, datetime | None]:
    """What a user logs in with, and when it expires."""
    if certificate := pem(user, "client-certificate", folder):
        return "client certificate", certificate_end(certificate)
    token = (folder / user["tokenFile"]).read_text() if "tokenFile" in user else str(user["token"])
    return "token", token_end(token)


def _ago(seconds: float) -> str:
    for length, unit in ((86400, "day"), (3600, "hour"), (60, "minute")):
        if seconds >= length:
            number = int(seconds // length)
            return f"{number} {unit}{'s' * (number != 1)}"
    return "a moment"


def _renewal(context: str, entry: ContextEntry) -> str:
    """The command that fetches new credentials, where the kind of cluster is known."""
    server = str(entry.cluster.get("server") or "")
    if match := EKS.match(context):
        return f"Run: aws eks update-kubeconfig --region {match[1]} --name {match[2]}"
    if ".eks.amazonaws.com" in server:
        return "Run: aws eks update-kubeconfig --name CLUSTER"
    if match := GKE.match(context):
        project, location, name = match[1], match[2], match[3]
        return f"Run: gcloud container clusters get-credentials {name} --location {location} --project {project}"
    if ".azmk8s.io" in server:
        return f"Run: az aks get-credentials --resource-group GROUP --name {shlex.quote(context)}"
    if "exec" in entry.user:
        return f"Log in again with the kubeconfig's login command: {entry.user['exec']['command']}"
    return f"Ask your cluster admin for a new kubeconfig, then try: {kubectl(context)} auth whoami"
