"""What can go wrong with a cluster, and what an API server's error responses mean for a user."""

import json
import re
import ssl
from typing import Any

import httpx2

from stoker.kube.kinds import Kind
from stoker.kube.kubectl import kubectl
from stoker.kube.rights import grant
from stoker.spec.errors import UserError

NOT_FOUND = 404
OUT_OF_DATE = {9: "is not valid yet", 10: "has expired"}  # OpenSSL's X509_V_ERR_… codes
CANNOT = re.compile(r'cannot (\w+) resource "[^"]*" in API group "[^"]*"(?: in the namespace "([^"]*)")?')
USER = re.compile(r'User "([^"]+)" cannot')
APPLY_VERBS = ("create", "patch")  # applying an object needs both
READ_VERBS = ("get", "list", "watch")  # only a missing right forbids these
WEBHOOK_FAILED = "failed calling webhook"
WEBHOOK_DOWN = (  # the last: its certificate is so new that the API server does not know it yet
    "no endpoints available for service",
    "connection refused",
    "no route to host",
    "deadline exceeded",
    "certificate signed by unknown authority",
)
NOT_SYNCED = (  # admission webhooks give no code for it: Kubeflow Trainer's text, then Volcano's
    "must be created before the TrainJob",
    "unable to find job queue",
    "queue with state `Open`",
)
NO_PROGRAM = "executable file not found"  # the status of an exec has no code for it
IMMUTABLE = "immutable"  # JobSet's webhook answers 403 for what the API server itself answers 422
INVALID = 422
RULES = (  # text in the message of an admission controller -> what to do
    ("admission webhook", "Follow its rule, with on.pod where it is about pods, or ask your cluster admin"),
    ("is being terminated", "Wait until the namespace is gone and create it again, or use another: on.namespace"),
    (
        "violates PodSecurity",
        "Set what it names with on.pod: {spec: {securityContext: …}} and that of container pytorch",
    ),
    ("service account", "Create it first, or change on.service_account"),
    ("PriorityClass", "Change on.priority; list them with: kubectl get priorityclasses"),
    ("quota", "Change on.cpu, on.memory, on.gpus or on.nodes; see: kubectl describe quota"),
    ("usage per", "Change on.cpu, on.memory or on.volume; see: kubectl describe limits"),
)


class ClusterError(UserError):
    """A cluster, or the way to it, does not do what was asked."""


class Refused(ClusterError):
    """The API server refused a request."""

    def __init__(self, problem: str, *, remedy: str, code: int) -> None:
        super().__init__(problem, remedy=remedy)
        self.code = code


class Forbidden(Refused):
    """The user is missing a right."""


class WebhookUnavailable(Refused):
    """A webhook that must approve the object does not answer: its operator is starting, or broken."""


class Invalid(Refused):
    """The object is not valid, or a field was changed that cannot be changed."""


class NotSynced(Refused):
    """A webhook has not yet seen an object that was created a moment ago. Trying again helps."""


class CannotExecute(Refused):
    """The container does not have the program that is to be executed."""


class Unreachable(ClusterError):
    """No cluster is known, or it does not answer."""


class NotLoggedIn(ClusterError):
    """The kubeconfig, or its login command, gives no credentials."""


class ConnectionLost(ClusterError):
    """A stream broke off before its end."""


def refusal(
    response: httpx2.Response, *, verb: str, kind: Kind, name: str, namespace: str | None, cluster: str
) -> Refused:
    """Explains an error response, which has been read. `cluster`: what messages call it."""
    status = _status(response)
    message = str(status.get("message") or response.text.strip() or f"HTTP {response.status_code}")
    code = response.status_code
    target = f"{kind.name} {name}".strip()
    if code == 401:
        return Refused(
            f"the API server of {cluster} does not know these credentials",
            remedy=f"Log in again, then try: {_kubectl(cluster)} auth whoami",
            code=code,
        )
    if code == 403 and (denied := CANNOT.search(message)):
        user = USER.search(message)
        return forbidden(
            verb=denied[1], kind=kind, namespace=denied[2] or namespace, cluster=cluster, user=user[1] if user else None
        )
    if code == NOT_FOUND and f'namespaces "{namespace}" not found' in message:
        return Refused(
            f"{cluster} has no namespace '{namespace}'",
            remedy=f"Run: {_kubectl(cluster)} create ns {namespace}",
            code=code,
        )
    if code == NOT_FOUND and not (status.get("details") or {}).get("name"):
        return Refused(
            f"the API server of {cluster} knows no kind {kind.name} ({kind.version})",
            remedy="See what is installed with: stoker check kube",
            code=code,
        )
    if WEBHOOK_FAILED in message and any(cause in message for cause in WEBHOOK_DOWN):
        return WebhookUnavailable(
            f"the API server of {cluster} cannot {verb} {target}: the webhook of its operator does not answer",
            remedy="Wait until its pods are ready, or fix them; see: stoker check kube",
            code=code,
        )
    otherwise = "Ask your cluster admin what its rules allow" if code == 403 else "Change what it names"
    remedy = next((remedy for text, remedy in RULES if text in message), otherwise)
    refused = Forbidden if code == 403 and verb in READ_VERBS else Refused
    if any(text in message for text in NOT_SYNCED):
        refused = NotSynced
    elif code == INVALID or IMMUTABLE in message:
        refused = Invalid
    remedy = remedy.replace("kubectl", _kubectl(cluster, namespace))
    problem = f"the API server of {cluster} refuses to {verb} {target}: {' '.join(message.split())}"
    return refused(problem, remedy=remedy, code=code)


def forbidden(*, verb: str, kind: Kind, namespace: str | None, cluster: str, user: str | None = None) -> Forbidden:
    """The error for a missing right, with the role that grants it. `user`: the user name, if the server gave it."""
    where = f" in namespace {namespace}" if kind.namespaced and namespace else ""
    verbs = APPLY_VERBS if verb in APPLY_VERBS and "/" not in kind.plural else (verb,)
    rights = [(verb, kind) for verb in verbs]
    return Forbidden(
        f"you may not {verb} {kind.plural}{where} of {cluster}",
        remedy=grant(rights, namespace=namespace, name=f"stoker-{kind.plural.replace('/', '-')}", user=user),
        code=403,
    )


def tls_error(error: BaseException) -> ssl.SSLError | None:
    """The TLS error that caused a failed connection."""
    cause: BaseException | None = error
    while cause is not None and not isinstance(cause, ssl.SSLError):
        cause = cause.__cause__ or cause.__context__
    return cause


def is_certificate_error(error: BaseException) -> bool:
    tls = tls_error(error)
    return tls is not None and "CERTIFICATE" in (tls.reason or "")


def unreachable(error: Exception, *, server: str, cluster: str) -> Unreachable:
    reason = " ".join(str(error).split()) or type(error).__name__
    tls = tls_error(error)
    code = tls.verify_code if isinstance(tls, ssl.SSLCertVerificationError) else None
    if code in OUT_OF_DATE:
        how = OUT_OF_DATE[code]
        return Unreachable(
            f"the certificate of the API server {server} of {cluster} {how}",
            remedy="Ask your cluster admin to renew it, or check this machine's clock: date",
        )
    if code is not None:
        return Unreachable(
            f"the certificate of the API server {server} of {cluster} is not the one that the kubeconfig names",
            remedy="Fetch the kubeconfig again: the cluster may have been recreated, or a proxy may be in between",
        )
    return Unreachable(
        f"the API server {server} of {cluster} does not answer ({reason})",
        remedy=f"Is the cluster up, and this machine in its network? Try: {_kubectl(cluster)} get --raw /readyz",
    )


def _status(response: httpx2.Response) -> dict[str, Any]:
    try:
        status = response.json()
    except (json.JSONDecodeError, UnicodeDecodeError):
        return {}
    return status if isinstance(status, dict) else {}


def _kubectl(cluster: str, namespace: str | None = None) -> str:
    return kubectl(cluster.removeprefix("context ") if cluster.startswith("context ") else None, namespace)
