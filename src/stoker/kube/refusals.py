"""What an API server's refusals mean for a user."""

import json
import re
from typing import Any

import httpx

from stoker.kube.kinds import Kind
from stoker.kube.kubectl import kubectl
from stoker.kube.rights import grant
from stoker.spec.errors import UserError

NOT_FOUND = 404
CANNOT = re.compile(r'cannot (\w+) resource "[^"]*" in API group "[^"]*"(?: in the namespace "([^"]*)")?')
USER = re.compile(r'User "([^"]+)" cannot')
TOGETHER = ("create", "patch")  # to apply an object takes both
READS = ("get", "list", "watch")  # nothing but a missing right forbids these
HOOK = "failed calling webhook"
SILENT = (  # the last: its certificate was made a moment ago, and the API server has not heard of it
    "no endpoints available for service",
    "connection refused",
    "no route to host",
    "deadline exceeded",
    "certificate signed by unknown authority",
)
RULES = (  # words of an admission's refusal -> what to do
    ("admission webhook", "Follow its rule, with on.pod where it is of the pods, or ask who runs the cluster"),
    ("is being terminated", "Wait until the namespace is gone and make it anew, or take another: on.namespace"),
    (
        "violates PodSecurity",
        "Meet what it names with on.pod: {spec: {securityContext: …}} and that of container pytorch",
    ),
    ("service account", "Make it first, or change on.service_account"),
    ("PriorityClass", "Change on.priority; kubectl get priorityclasses shows what there is"),
    ("quota", "Ask for less or for more with on.cpu, on.memory, on.gpus or on.nodes; see: kubectl describe quota"),
    ("usage per", "Change on.cpu, on.memory or on.volume; see: kubectl describe limits"),
)


class Refused(UserError):
    """The API server answered, and its answer is no."""

    def __init__(self, problem: str, *, remedy: str, code: int) -> None:
        super().__init__(problem, remedy=remedy)
        self.code = code


class Forbidden(Refused):
    """The user lacks a right."""


class HookSilent(Refused):
    """A webhook that must see the object first does not answer: its operator is starting, or broken."""


class Unreachable(UserError):
    """No cluster is known, or nobody answers."""


class LoggedOut(UserError):
    """The kubeconfig, or the login command that it names, gives no credentials."""


class Lost(UserError):
    """A stream broke off before its end."""


def refusal(response: httpx.Response, *, verb: str, kind: Kind, name: str, namespace: str | None, who: str) -> Refused:
    """`who`: the context, in words. The response has been read."""
    status = _status(response)
    message = str(status.get("message") or response.text.strip() or f"HTTP {response.status_code}")
    code = response.status_code
    what = f"{kind.name} {name}".strip()
    if code == 401:
        return Refused(
            f"the API server of {who} does not know these credentials",
            remedy=f"Log in again, then try: {_kubectl(who)} auth whoami",
            code=code,
        )
    if code == 403 and (named := CANNOT.search(message)):
        user = USER.search(message)
        where = named[2] or namespace
        return forbidden(verb=named[1], kind=kind, namespace=where, who=who, code=code, user=user[1] if user else None)
    if code == NOT_FOUND and f'namespaces "{namespace}" not found' in message:
        return Refused(
            f"{who} has no namespace '{namespace}'", remedy=f"Run: {_kubectl(who)} create ns {namespace}", code=code
        )
    if code == NOT_FOUND and not (status.get("details") or {}).get("name"):
        return Refused(
            f"the API server of {who} knows no kind {kind.name} ({kind.version})",
            remedy="See what is installed with: stoker check kube",
            code=code,
        )
    if HOOK in message and any(words in message for words in SILENT):
        return HookSilent(
            f"the API server of {who} cannot {verb} {what}: the webhook of its operator does not answer",
            remedy="Wait until its pods are ready, or mend them; see: stoker check kube",
            code=code,
        )
    otherwise = "Ask who runs the cluster what its rules allow" if code == 403 else "Mend it"
    remedy = next((mend for words, mend in RULES if words in message), otherwise)
    refused = Forbidden if code == 403 and verb in READS else Refused
    problem = f"the API server of {who} refuses to {verb} {what}: {' '.join(message.split())}"
    return refused(problem, remedy=remedy, code=code)


def forbidden(
    *, verb: str, kind: Kind, namespace: str | None, who: str, code: int = 403, user: str | None = None
) -> Forbidden:
    """`user`: who was refused, where the server has named them."""
    where = f" in namespace {namespace}" if kind.namespaced and namespace else ""
    verbs = TOGETHER if verb in TOGETHER and "/" not in kind.plural else (verb,)
    rights = [(one, kind) for one in verbs]
    return Forbidden(
        f"you may not {verb} {kind.plural}{where} of {who}",
        remedy=grant(rights, namespace=namespace, name=f"stoker-{kind.plural.replace('/', '-')}", user=user),
        code=code,
    )


def unreachable(error: Exception, *, server: str, who: str) -> Unreachable:
    reason = " ".join(str(error).split()) or type(error).__name__
    if "certificate has expired" in reason or "certificate is not yet valid" in reason:
        how = "has expired" if "has expired" in reason else "is not valid yet"
        return Unreachable(
            f"the certificate of the API server {server} of {who} {how}",
            remedy="Ask your cluster admin to renew it; or the clock of this machine is wrong: date",
        )
    if "CERTIFICATE_VERIFY_FAILED" in reason:
        return Unreachable(
            f"the certificate of the API server {server} of {who} is not the one that the kubeconfig names",
            remedy="Fetch the kubeconfig anew: the cluster was made again, or something stands between",
        )
    return Unreachable(
        f"the API server {server} of {who} does not answer ({reason})",
        remedy=f"Is the cluster up, and this machine in its network? Try: {_kubectl(who)} get --raw /readyz",
    )


def _status(response: httpx.Response) -> dict[str, Any]:
    try:
        status = response.json()
    except (json.JSONDecodeError, UnicodeDecodeError):
        return {}
    return status if isinstance(status, dict) else {}


def _kubectl(who: str) -> str:
    return kubectl(who.removeprefix("context ") if who.startswith("context ") else None)
