"""What the pods that read a run's volume take from the run: its variables, and what `on.pod` adds to its pods.

An image may get torch or Stoker from a volume that `on.pod` mounts and `env` names; such a pod needs both to run.
"""

from typing import Any

from stoker.launch.pod import literal, one_named
from stoker.spec import contract
from stoker.spec.run import AnySpec

Object = dict[str, Any]
OF_POD = ("securityContext", "tolerations", "imagePullSecrets", "serviceAccountName")
OF_CONTAINER = ("securityContext", "imagePullPolicy")
OF_HOST = ("nodeSelector", "affinity")  # a folder of a node may be there on some nodes only


def lent(run: AnySpec, *, container: str, mounted: str, secrets: bool) -> Object:
    """A patch for the spec of such a pod. Pure.

    `container`: the name of its container; `mounted`: the volume that it has already; without `secrets` it gets no
    volume and no variable that is filled from a Secret.
    """
    patch = run.on.pod.get("spec") or {}
    ours = one_named(patch.get("containers"), contract.CONTAINER)
    volumes = [one for one in _things(patch.get("volumes")) if secrets or not _is_secret(one)]
    names = {one.get("name") for one in volumes} - {mounted}
    mounts = [one for one in _things(ours.get("volumeMounts")) if one.get("name") in {*names, mounted}]
    found: Object = {key: patch[key] for key in OF_POD if patch.get(key)}
    if any("hostPath" in one for one in volumes):
        found |= {key: patch[key] for key in OF_HOST if patch.get(key)}
    found["volumes"] = [one for one in volumes if one.get("name") in names]
    found["initContainers"] = [
        one
        for one in _things(patch.get("initContainers"))  # those that fill such a volume
        if names & {mount.get("name") for mount in _things(one.get("volumeMounts"))}
    ]
    given = [{"name": name, "value": literal(value)} for name, value in run.env.items()]
    given += [one for one in _things(ours.get("env")) if secrets or not _is_secret(one.get("valueFrom") or {})]
    own = {key: ours[key] for key in OF_CONTAINER if ours.get(key)}
    own |= {"env": list({one.get("name"): one for one in given}.values()), "volumeMounts": mounts}
    filled = {key: value for key, value in own.items() if value}
    return {key: value for key, value in found.items() if value} | {"containers": [{"name": container} | filled]}


def _is_secret(source: Object) -> bool:
    """A volume, or the source of a variable."""
    return "secret" in source or "secretKeyRef" in source


def _things(value: Any) -> list[Object]:
    return [one for one in value if isinstance(one, dict)] if isinstance(value, list) else []
