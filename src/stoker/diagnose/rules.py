"""The rules of `presets/diagnoses.yaml`, which turn facts into findings. Root causes come first in that file."""

import re
import string
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import fields
from functools import cache
from typing import Annotated, Any, Literal, Self

import yaml
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, TypeAdapter, model_validator

from stoker.diagnose.facts import (
    ClaimFact,
    ControllerFact,
    DiagnosisFacts,
    EventFact,
    HookFact,
    LinkFact,
    PodFact,
    QueueFact,
    RecordFact,
    RunFact,
)
from stoker.diagnose.finding import Finding
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
MAX_CHARACTERS = 300  # of a message of another program, in a line of ours
UNTRUSTED = {"message", "error", "reason", "unscheduled", "failure_message", "save_error", "damage"}
"""Fields with text of unknown origin: a command must not contain them."""
COMMANDS = {
    "relaunch",
    "resume",
    "fewer_nodes",
    "ask_less",
    "micro_one",
    "keep_one",
    "fix",
    "add_image_secret",
    "drop_pull_policy",
    "run_as_user",
    "select_arch",
    "advice",
}
"""Fields with commands, or parts of them: never shortened."""
NAME_PATTERN = re.compile(r"\[a-z0-9[./:_-]*\]\+|\w+(?:\|\w+)*")  # of a group that a command contains


def _compiled(text: str) -> str:
    try:
        re.compile(text)
    except re.error as e:
        raise ValueError(f"'{text}' is not a regular expression: {e}") from e
    return text


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


Value = bool | int | float | str | None


class Test(_Strict):
    """Conditions on a value; all that are given must hold."""

    match: Annotated[str, AfterValidator(_compiled)] | None = None
    """A regular expression that is found in the value; cause and remedy can use its named groups."""
    above: float | None = None
    below: float | None = None
    unlike: Annotated[str, AfterValidator(_compiled)] | None = None
    """A regular expression that is not found in the value."""
    present: bool | None = None
    """Whether there is a value that is not empty."""

    def holds(self, value: object) -> dict[str, str] | None:
        """None when they do not; else the text of the named groups."""
        if self.present is not None and (value not in (None, "", 0)) != self.present:
            return None
        if self.above is not None and not (isinstance(value, (int, float)) and value > self.above):
            return None
        if self.below is not None and not (isinstance(value, (int, float)) and value < self.below):
            return None
        if self.unlike is not None and re.search(self.unlike, str(value), re.IGNORECASE):
            return None
        if self.match is None:
            return {}
        matched = re.search(self.match, str(value), re.IGNORECASE)
        return {key: text or "" for key, text in matched.groupdict().items()} if matched else None


Condition = Test | list[Value] | Value
Conditions = dict[str, Condition]


class Rule(_Strict):
    id: Annotated[str, Field(pattern=r"^[a-z][a-z0-9-]*$")]
    of: Literal["run", "record", "pod", "event", "claim", "controller", "queue", "hook", "link"]
    """The kind of fact that it is about: at least one such fact must fit."""
    where: Conditions = {}
    run: Conditions = {}
    """Conditions on the run as well."""
    cause: str
    remedy: str

    @model_validator(mode="after")
    def _names_exist(self) -> Self:
        for tests, fact in ((self.where, SUBJECTS[self.of]), (self.run, RunFact)):
            if unknown := set(tests) - _names(fact):
                raise ValueError(f"a {fact.__name__} has no {min(unknown)}")
        names = {part[1] for text in (self.cause, self.remedy) for part in string.Formatter().parse(text) if part[1]}
        groups = {group for test in self.where.values() if isinstance(test, Test) for group in _groups(test)}
        if unknown := names - _names(SUBJECTS[self.of]) - _names(RunFact) - groups - {"others"}:
            raise ValueError(f"there is no field or group {min(unknown)}")
        return self

    @model_validator(mode="after")
    def _commands_are_safe(self) -> Self:
        """A remedy is pasted into a shell, so it must not contain text of unknown origin.

        The name of an event's object is such text too, unless it is a pod: only the run's own pods are considered.
        """
        typed = {part[1] for part in string.Formatter().parse(self.remedy) if part[1]}
        patterns = [test.match for test in self.where.values() if isinstance(test, Test) and test.match]
        groups = {group: match for match in patterns for group in re.compile(match).groupindex}
        for name in sorted(typed & set(groups)):
            body = groups[name].partition(f"(?P<{name}>")[2].partition(")")[0]
            if not NAME_PATTERN.fullmatch(body):
                raise ValueError(f"the remedy contains {name}, which may match more than a name")
        untrusted = UNTRUSTED if self.of != "event" or self.where.get("object_kind") == "Pod" else UNTRUSTED | {"name"}
        if unsafe := (typed & untrusted) - set(groups):
            raise ValueError(f"the remedy contains {min(unsafe)}, which is text of unknown origin")
        return self


@cache
def rules() -> tuple[Rule, ...]:
    return TypeAdapter(tuple[Rule, ...]).validate_python(yaml.safe_load(FILE.read_text(encoding="utf-8")))


def findings(facts: DiagnosisFacts, selected: Iterable[Rule] | None = None) -> list[Finding]:
    """Those of all rules that fit, root causes first. Pure."""
    return [finding for rule in (rules() if selected is None else selected) if (finding := _finding(rule, facts))]


def _finding(rule: Rule, facts: DiagnosisFacts) -> Finding | None:
    if _holds(rule.run, facts.run) is None:
        return None
    checked = ((fact, _holds(rule.where, fact)) for fact in _facts_of(rule.of, facts))
    fitting = [(fact, groups) for fact, groups in checked if groups is not None]
    if not fitting:
        return None
    fact, groups = fitting[0]
    values = _values(facts.run) | _values(fact) | groups | {"others": _others(len(fitting) - 1)}
    shown = {key: _shown(value, whole=key in COMMANDS) for key, value in values.items()}
    shown["others"] = values["others"]
    return Finding(
        id=rule.id,
        cause=_line(rule.cause.format_map(shown)),
        remedy=_line(rule.remedy.format_map(shown)),
        count=len(fitting),
    )


def _facts_of(subject: str, facts: DiagnosisFacts) -> Iterator[object]:
    if subject == "run":
        yield facts.run
    elif subject == "record":
        yield from [facts.record] if facts.record else []
    else:
        yield from getattr(facts, f"{subject}s")


def _holds(conditions: Mapping[str, Condition], fact: object) -> dict[str, str] | None:
    """None when one of them does not; else the text of all named groups."""
    groups: dict[str, str] = {}
    for name, condition in conditions.items():
        matched = _fits(condition, getattr(fact, name))
        if matched is None:
            return None
        groups |= matched
    return groups


def _fits(condition: Condition, value: object) -> dict[str, str] | None:
    if isinstance(condition, Test):
        return condition.holds(value)
    wanted = condition if isinstance(condition, list) else [condition]
    return {} if any(type(item) is type(value) and item == value for item in wanted) else None


def _values(fact: object) -> dict[str, Any]:
    return {name: getattr(fact, name) for name in _names(type(fact))}


def _names(subject: type) -> set[str]:
    return {field.name for field in fields(subject)}


def _groups(test: Test) -> Iterable[str]:
    return re.compile(test.match).groupindex if test.match else ()


def _shown(value: object, *, whole: bool) -> str:
    if isinstance(value, float):
        return f"{value:.0f}" if abs(value) >= 10 else f"{value:.2g}"
    text = " ".join(str("" if value is None else value).split())
    return text if whole or len(text) <= MAX_CHARACTERS else f"{text[: MAX_CHARACTERS - 1]}…"


def _others(number: int) -> str:
    return f" (and {number} more)" if number else ""


def _line(text: str) -> str:
    return " ".join(text.split())
