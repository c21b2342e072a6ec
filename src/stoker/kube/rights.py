"""Rights in a cluster, as its administrator grants them: a role, and the binding that gives it to a user."""

from collections.abc import Sequence
from typing import Any

import yaml

from stoker.kube.kinds import Kind

GROUP = "rbac.authorization.k8s.io"
ACCOUNT = "system:serviceaccount:"  # what the name of a service account's user begins with
UNKNOWN = "YOUR-USER"

Right = tuple[str, Kind]  # verb, resource


def grant(rights: Sequence[Right], *, namespace: str | None, name: str, user: str | None) -> str:
    """What to ask an administrator for: YAML that kubectl applies. `user` is None where the server did not say."""
    role = role_for(rights, namespace=namespace, name=name)
    whose = "" if user else f" (with your user's name for {UNKNOWN})"
    text = yaml.safe_dump_all([role, binding_for(role, user or UNKNOWN)], sort_keys=False)
    return f"Ask its administrator for this{whose}:\n{text.rstrip()}"


def role_for(rights: Sequence[Right], *, namespace: str | None, name: str = "stoker") -> dict[str, Any]:
    """The Role, or ClusterRole where one of them is of no namespace, that gives these rights and no others."""
    inside = bool(namespace) and all(kind.namespaced for _, kind in rights)
    verbs: dict[tuple[str, str], list[str]] = {}
    for verb, kind in rights:
        verbs.setdefault((kind.group, kind.plural), []).append(verb)
    rules = [
        {"apiGroups": [group], "resources": [plural], "verbs": sorted(set(some))}
        for (group, plural), some in verbs.items()
    ]
    return {
        "apiVersion": f"{GROUP}/v1",
        "kind": "Role" if inside else "ClusterRole",
        "metadata": {"name": name} | ({"namespace": namespace} if inside else {}),
        "rules": rules,
    }


def binding_for(role: dict[str, Any], user: str) -> dict[str, Any]:
    """Gives a role to a user, who may be a service account."""
    subject: dict[str, Any] = {"kind": "User", "apiGroup": GROUP, "name": user}
    if user.startswith(ACCOUNT):
        namespace, _, name = user.removeprefix(ACCOUNT).partition(":")
        subject = {"kind": "ServiceAccount", "name": name, "namespace": namespace}
    return {
        "apiVersion": role["apiVersion"],
        "kind": f"{role['kind']}Binding",
        "metadata": role["metadata"],
        "subjects": [subject],
        "roleRef": {"apiGroup": GROUP, "kind": role["kind"], "name": role["metadata"]["name"]},
    }
