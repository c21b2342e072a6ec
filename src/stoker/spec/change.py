"""Which settings may change when a run is resumed, and which make it another run."""

from dataclasses import dataclass

from pydantic import ValidationError

from stoker.spec.errors import UserError
from stoker.spec.keys import OWN_KEYS, flat, keys
from stoker.spec.on import Nodes
from stoker.spec.run import AnySpec, RunSpec

MAY_CHANGE = ("on", "until", "checkpoint", "log", "eval", "batch.micro", "optim.horizon", "callbacks", "secrets")
Changes = dict[str, tuple[object, object]]


@dataclass(frozen=True, kw_only=True, slots=True)
class Difference:
    """Dotted key -> (old value, new value), for messages: the values of variables and secrets are hidden."""

    allowed: Changes
    refused: Changes
    data: Changes
    """Keys of `data`. They matter only when the content keys of the token sets differ: data may have been moved."""


def difference(old: AnySpec, new: AnySpec) -> Difference:
    before, after = flat(old), flat(new)
    before, after = _defaults(after) | before, _defaults(before) | after
    if isinstance(new, RunSpec) and isinstance(old, RunSpec) and new.model.vocab is None:
        after["model.vocab"] = before["model.vocab"]  # set from the tokenizer when the run was created
    changed = {
        key: (_shown(key, before[key]), _shown(key, after[key]))
        for key in before
        if key != "name" and before[key] != after[key]
    }
    data = {key: values for key, values in changed.items() if key.startswith("data.")}
    allowed = {key: values for key, values in changed.items() if _may_change(key)}
    refused = {key: values for key, values in changed.items() if key not in data and key not in allowed}
    return Difference(allowed=allowed, refused=refused, data=data)


def _defaults(other: dict[str, object]) -> dict[str, object]:
    """The values of keys that a spec does not have: keys of another backend, and variables that it does not set."""
    return {key: None if key not in keys() or keys()[key].is_required() else keys()[key].default for key in other}


def with_nodes(spec: AnySpec, nodes: Nodes) -> AnySpec:
    """The spec with another number of nodes. Raises UserError if other keys of `on` do not allow it."""
    try:
        on = type(spec.on).model_validate(spec.on.model_dump() | {"nodes": nodes})
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
