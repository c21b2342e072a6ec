"""Builds the role and binding that an administrator applies to grant missing rights."""

from collections.abc import Sequence
from typing import Any

import yaml

from stoker.kube.kinds import Kind

GROUP = "rbac.authorization.k8s.io"
SERVICE_ACCOUNT_PREFIX = "system:serviceaccount:"  # of the user name of a service account
UNKNOWN_USER = "YOUR-USER"

Right = tuple[str, Kind]  # verb, resource


def grant(rights: Sequence[Right], *, namespace: str | None, name: str, user: str | None) -> str:
    """A remedy with the YAML to apply. `user` is None where the server did not name it."""
    role = role_for(rights, namespace=namespace, name=name)
    hint = "" if user else f" (with your user name for {UNKNOWN_USER})"
    text = yaml.safe_dump_all([role, binding_for(role, user or UNKNOWN_USER)], sort_keys=False)
    return f"Ask your cluster admin to apply this{hint}:\n{text.rstrip()}"


def role_for(rights: Sequence[Right], *, namespace: str | None, name: str = "stoker") -> dict[str, Any]:
    """The Role with exactly these rights, or the ClusterRole if one of them is not namespaced."""
    namespaced = bool(namespace) and all(kind.namespaced for _, kind in rights)
    verbs: dict[tuple[str, str], list[str]] = {}
    for verb, kind in rights:
        verbs.setdefault((kind.group, kind.plural), []).append(verb)
    rules = [
        {"apiGroups": [group], "resources": [plural], "verbs": sorted(set(granted))}
        for (group, plural), granted in verbs.items()
    ]
    return {
        "apiVersion": f"{GROUP}/v1",
        "kind": "Role" if namespaced else "ClusterRole",
        "metadata": {"name": name} | ({"namespace": namespace} if namespaced else {}),
        "rules": rules,
    }


def binding_for(role: dict[str, Any], user: str) -> dict[str, Any]:
    """The binding that gives a role to a user or service account."""
    subject: dict[str, Any] = {"kind": "User", "apiGroup": GROUP, "name": user}
    if user.startswith(SERVICE_ACCOUNT_PREFIX):
        namespace, _, name = user.removeprefix(SERVICE_ACCOUNT_PREFIX).partition(":")
        subject = {"kind": "ServiceAccount", "name": name, "namespace": namespace}
    return {
        "apiVersion": role["apiVersion"],
        "kind": f"{role['kind']}Binding",
        "metadata": role["metadata"],
        "subjects": [subject],
        "roleRef": {"apiGroup": GROUP, "kind": role["kind"], "name": role["metadata"]["name"]},
    }
