"""The rules of `presets/diagnoses.yaml`: which facts mean what, and what to do then. Deeper causes come first there."""

import re
import string
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import fields
from functools import cache
from typing import Annotated, Any, Literal, Self

import yaml
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, TypeAdapter, model_validator

from stoker.observe.facts import (
    ClaimFact,
    ControllerFact,
    EventFact,
    Facts,
    HookFact,
    LinkFact,
    PodFact,
    QueueFact,
    RecordFact,
    RunFact,
)
from stoker.spec.presets import FOLDER

FILE = FOLDER / "diagnoses.yaml"
SUBJECTS: dict[str, type] = {
    "run": RunFact,
    "record": RecordFact,
    "pod": PodFact,
    "event": EventFact,
    "claim": ClaimFact,
    "controller": ControllerFact,
    "queue": QueueFact,
    "hook": HookFact,
    "link": LinkFact,
}
LONGEST = 300  # characters of what somebody else said, in a line of ours
FREE = {"said", "error", "reason", "words", "unscheduled", "complaint", "unsaved", "damaged"}
"""Fields that hold what anybody may have written: none of that is to be typed."""
WHOLE = {
    "again",
    "resume",
    "fewer",
    "less",
    "micro",
    "kept",
    "mend",
    "opened",
    "pulled",
    "demoted",
    "processors",
    "advice",
}
"""Fields that hold what is to be typed: a part of that is of no use."""
PLAIN = re.compile(r"\[a-z0-9[./:_-]*\]\+|\w+(?:\|\w+)*")  # what a group may match that is to be typed


def _compiled(text: str) -> str:
    try:
        re.compile(text)
    except re.error as e:
        raise ValueError(f"'{text}' is no regular expression: {e}") from e
    return text


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)


Value = bool | int | float | str | None


class Test(_Strict):
    """All that is given has to hold of a value."""

    match: Annotated[str, AfterValidator(_compiled)] | None = None
    """Is found in it, as a regular expression; the names of its groups can be used in the words."""
    above: float | None = None
    below: float | None = None
    unlike: Annotated[str, AfterValidator(_compiled)] | None = None
    """Is not found in it."""
    some: bool | None = None
    """It is there and not empty, or it is not."""

    def holds(self, value: object) -> dict[str, str] | None:
        """None when it does not; else what its groups found."""
        if self.some is not None and (value not in (None, "", 0)) != self.some:
            return None
        if self.above is not None and not (isinstance(value, (int, float)) and value > self.above):
            return None
        if self.below is not None and not (isinstance(value, (int, float)) and value < self.below):
            return None
        if self.unlike is not None and re.search(self.unlike, str(value), re.IGNORECASE):
            return None
        if self.match is None:
            return {}
        found = re.search(self.match, str(value), re.IGNORECASE)
        return {key: text or "" for key, text in found.groupdict().items()} if found else None


Condition = Test | list[Value] | Value
Conditions = dict[str, Condition]


class Rule(_Strict):
    id: Annotated[str, Field(pattern=r"^[a-z][a-z0-9-]*$")]
    of: Literal["run", "record", "pod", "event", "claim", "controller", "queue", "hook", "link"]
    """What it is about: one of those has to fit."""
    where: Conditions = {}
    run: Conditions = {}
    """What has to be true of the run as well."""
    cause: str
    remedy: str

    @model_validator(mode="after")
    def _speaks_of_what_there_is(self) -> Self:
        for given, known in ((self.where, SUBJECTS[self.of]), (self.run, RunFact)):
            if unknown := set(given) - _names(known):
                raise ValueError(f"a {known.__name__} has no {min(unknown)}")
        words = {part[1] for text in (self.cause, self.remedy) for part in string.Formatter().parse(text) if part[1]}
        groups = {group for one in self.where.values() if isinstance(one, Test) for group in _groups(one)}
        if unknown := words - _names(SUBJECTS[self.of]) - _names(RunFact) - groups - {"others"}:
            raise ValueError(f"nobody knows what {min(unknown)} is")
        return self

    @model_validator(mode="after")
    def _has_nothing_typed_that_anybody_wrote(self) -> Self:
        """A remedy is pasted into a shell, and a message may hold a command.

        So may the name of what an event is about, unless that is a pod: only the run's own are taken.
        """
        typed = {part[1] for part in string.Formatter().parse(self.remedy) if part[1]}
        given = [one.match for one in self.where.values() if isinstance(one, Test) and one.match]
        groups = {group: match for match in given for group in re.compile(match).groupindex}
        for name in sorted(typed & set(groups)):
            body = groups[name].partition(f"(?P<{name}>")[2].partition(")")[0]
            if not PLAIN.fullmatch(body):
                raise ValueError(f"{name} is to be typed, and may match more than a name")
        free = FREE if self.of != "event" or self.where.get("about") == "Pod" else FREE | {"name"}
        if loose := (typed & free) - set(groups):
            raise ValueError(f"{min(loose)} is to be typed, and anybody may have written it")
        return self


class Finding(_Strict):
    """A rule that fits."""

    id: str
    cause: str
    remedy: str
    count: int = 1
    """Of how many pods, claims and so on it is true."""


@cache
def rules() -> tuple[Rule, ...]:
    return TypeAdapter(tuple[Rule, ...]).validate_python(yaml.safe_load(FILE.read_text(encoding="utf-8")))


def findings(facts: Facts, some: Iterable[Rule] | None = None) -> list[Finding]:
    """All that fit, the deepest cause first. Pure."""
    return [found for rule in (rules() if some is None else some) if (found := _finding(rule, facts))]


def _finding(rule: Rule, facts: Facts) -> Finding | None:
    if _holds(rule.run, facts.run) is None:
        return None
    tried = ((thing, _holds(rule.where, thing)) for thing in _things(rule.of, facts))
    fitting = [(thing, groups) for thing, groups in tried if groups is not None]
    if not fitting:
        return None
    thing, groups = fitting[0]
    words = _values(facts.run) | _values(thing) | groups | {"others": _others(len(fitting) - 1)}
    shown = {key: _word(value, whole=key in WHOLE) for key, value in words.items()} | {"others": words["others"]}
    return Finding(
        id=rule.id,
        cause=_line(rule.cause.format_map(shown)),
        remedy=_line(rule.remedy.format_map(shown)),
        count=len(fitting),
    )


def _things(subject: str, facts: Facts) -> Iterator[object]:
    if subject == "run":
        yield facts.run
    elif subject == "record":
        yield from [facts.record] if facts.record else []
    else:
        yield from getattr(facts, f"{subject}s")


def _holds(conditions: Mapping[str, Condition], thing: object) -> dict[str, str] | None:
    """None when one of them does not; else what the groups of all found."""
    groups: dict[str, str] = {}
    for name, condition in conditions.items():
        found = _fits(condition, getattr(thing, name))
        if found is None:
            return None
        groups |= found
    return groups


def _fits(condition: Condition, value: object) -> dict[str, str] | None:
    if isinstance(condition, Test):
        return condition.holds(value)
    wanted = condition if isinstance(condition, list) else [condition]
    return {} if any(type(one) is type(value) and one == value for one in wanted) else None


def _values(thing: object) -> dict[str, Any]:
    return {name: getattr(thing, name) for name in _names(type(thing))}


def _names(subject: type) -> set[str]:
    return {field.name for field in fields(subject)}


def _groups(test: Test) -> Iterable[str]:
    return re.compile(test.match).groupindex if test.match else ()


def _word(value: object, *, whole: bool) -> str:
    if isinstance(value, float):
        return f"{value:.0f}" if abs(value) >= 10 else f"{value:.2g}"
    text = " ".join(str("" if value is None else value).split())
    return text if whole or len(text) <= LONGEST else f"{text[: LONGEST - 1]}…"


def _others(number: int) -> str:
    return f" (and {number} more)" if number else ""


def _line(text: str) -> str:
    return " ".join(text.split())
