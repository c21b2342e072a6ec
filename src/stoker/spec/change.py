"""What may differ when a run goes on, and what makes it another run."""

from dataclasses import dataclass

from pydantic import ValidationError

from stoker.spec.errors import UserError
from stoker.spec.keys import OWN_KEYS, flat
from stoker.spec.on import Nodes, On
from stoker.spec.run import AnySpec, RunSpec

MAY_CHANGE = ("on", "until", "checkpoint", "log", "eval", "batch.micro", "optim.horizon", "callbacks", "secrets")
Changes = dict[str, tuple[object, object]]


@dataclass(frozen=True, kw_only=True, slots=True)
class Difference:
    """Dotted key -> (old value, new value), to be shown: what a variable or a secret holds is left out."""

    allowed: Changes
    refused: Changes
    data: Changes
    """Keys of `data`: they matter only when the content keys of the token sets differ: data may have moved."""


def difference(old: AnySpec, new: AnySpec) -> Difference:
    before, after = flat(old), flat(new)
    if isinstance(new, RunSpec) and isinstance(old, RunSpec) and new.model.vocab is None:
        after["model.vocab"] = before["model.vocab"]  # left out, it is what the tokenizer made it when the run began
    changed = {
        key: (_shown(key, before.get(key)), _shown(key, after.get(key)))
        for key in before | after
        if key != "name" and before.get(key) != after.get(key)
    }
    data = {key: values for key, values in changed.items() if key.startswith("data.")}
    allowed = {key: values for key, values in changed.items() if _may_change(key)}
    refused = {key: values for key, values in changed.items() if key not in data and key not in allowed}
    return Difference(allowed=allowed, refused=refused, data=data)


def with_nodes(spec: AnySpec, nodes: Nodes) -> AnySpec:
    """Raises UserError where all else that `on` says does not go with so many."""
    try:
        on = On.model_validate(spec.on.model_dump() | {"nodes": nodes})
    except ValidationError as e:
        problem, _, remedy = str(e.errors()[0]["ctx"]["error"]).partition("; ")
        raise UserError(
            f"run '{spec.name}' cannot have on.nodes={nodes}: {problem}", remedy=remedy[:1].upper() + remedy[1:]
        ) from e
    return spec.model_copy(update={"on": on})


def _shown(key: str, value: object) -> object:
    return "…" if key.startswith(tuple(f"{section}." for section in OWN_KEYS)) and value is not None else value


def _may_change(key: str) -> bool:
    return any(key == may or key.startswith(f"{may}.") for may in MAY_CHANGE)
