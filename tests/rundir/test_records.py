"""One bad record is skipped and counted; a file that is one record is damaged as a whole."""

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from stoker.rundir import DataRef, Exit, RunDir
from stoker.rundir.events import parse_event
from stoker.rundir.records import (
    RECORD_BYTES,
    Damaged,
    Tail,
    parse_line,
    parse_metrics,
    parse_spec,
    read_records,
    records_backwards,
    skipped_summary,
    typed,
)
from stoker.spec.data import Data
from stoker.spec.errors import UserError
from stoker.spec.run import RunSpec, ScriptSpec, Until

HEAD = {"time": 1.5, "rank": None, "host": "h"}
EVENTS = [
    HEAD | {"kind": "note", "text": "x"},
    HEAD | {"kind": "world", "attempt": 1, "workers": 2, "restart": 0, "nodes": [{}]},
    HEAD | {"kind": "started", "chip": "CPU", "parameters": 8, "step": 3, "steps": 9, "tokens_per_step": 8},
    HEAD | {"kind": "checkpoint", "step": 3, "seconds": 0.5},
    HEAD | {"kind": "failed", "code": 1, "signal": None, "again": True},
    HEAD | {"kind": "paused", "step": 3, "reason": "x"},
    HEAD | {"kind": "changed", "changes": {"until.steps": [1, 2]}},
    HEAD | {"kind": "waiting for nodes", "joined": [0], "missing": [1], "least": 2, "most": 2},
]
METRICS = {"step": 3, "time": 1.5, "loss": None, "lr": 1e-3, "parameters": {"w": [0.5, 1]}, "own": "text"}


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    run = RunDir(tmp_path / "tale")
    run.create(RunSpec(name="tale", data=Data(path="x"), until=Until(steps=9)), DataRef(shards="/x", key="k"))
    return run


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"{",
        b"3",
        b"[]",
        b"null",
        b'"text"',
        b"\xff\xfe",
        b"\0" * 100,
        b"[" * 100_000,
        b'{"a":' + b"[" * 50 + b"]" * 50 + b"}",
        b'{"a": ' + b"9" * 5000 + b"}",
        b'{"a": -1' + b"0" * 30 + b"}",
        b'{"a": 1e999}',
        b'{"a": [NaN]}',
        b'{"a": Infinity}',
        b'{"a": "\\ud800"}',
        b'{"a": "' + b"x" * RECORD_BYTES + b'"}',
    ],
    ids=range(17),
)
def test_only_an_object_within_the_limits_is_a_record(line: bytes) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 (of many kinds)
        parse_line(line)


@pytest.mark.parametrize(
    "change",
    [
        {"time": None}, {"time": "now"}, {"time": -1}, {"time": 1e300}, {"time": True}, {"kind": 3}, {"kind": None},
        {"rank": "0"}, {"rank": -1}, {"host": 3}, {"step": "7"}, {"step": 1.5}, {"steps": []}, {"workers": 10**9},
        {"workers": -1}, {"again": "yes"}, {"nodes": [3]}, {"nodes": 3}, {"missing": 3}, {"reason": {}}, {"text": []},
        {"tokens_per_step": "x"}, {"changes": []}, {"changes": {"a": [1]}},
        {"changes": {"a": [1, 2, 3]}}, {"seconds": "x"},
    ],
    ids=str,
)  # fmt: skip
def test_an_event_has_a_time_a_kind_and_fields_of_the_right_type(change: dict[str, Any]) -> None:
    assert parse_event({"time": 0, "kind": "of another version", "new": [{"a": 1}]})
    for event in EVENTS:
        assert parse_event(event)
    assert any(parse_event(event | change) is None for event in EVENTS)


def test_an_event_of_another_version_keeps_its_kind_and_all_its_fields() -> None:
    record = HEAD | {"kind": "of another version", "name": "x", "values": {"a": 1}}
    event = parse_event(record)
    assert event is not None
    assert event.record() == record
    assert event.sentence == "of another version: name=x  values={'a': 1}"
    missing = HEAD | {"kind": "paused", "step": 3}
    event = parse_event(missing)
    assert event is not None
    assert (event.record(), event.sentence) == (missing, "paused: step=3")


@pytest.mark.parametrize(
    "change",
    [
        {"step": "3"}, {"step": -1}, {"step": 2.0}, {"step": True}, {"step": 10**16}, {"step": None}, {"time": "now"},
        {"time": -1}, {"loss": "low"}, {"loss": [1]}, {"tokens_per_second": {}}, {"val_loss": True},
    ],
    ids=str,
)  # fmt: skip
def test_a_metrics_record_has_a_step_and_numbers(change: dict[str, Any]) -> None:
    assert parse_metrics(METRICS)
    assert parse_metrics({"step": 0})
    assert not parse_metrics(METRICS | change)


def test_bad_lines_are_skipped_and_counted_in_either_direction(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    good = [json.dumps(METRICS | {"step": step}).encode() for step in (1, 2, 3)]
    long = b'{"step": 9, "own": "' + b"x" * (2 * RECORD_BYTES) + b'"}'
    path.write_bytes(b"\n".join([good[0], b"", b"torn", good[1], long, b'{"step": "x"}', good[2], b'{"step": 4, "lo']))
    skipped: Counter[str] = Counter()
    assert [record["step"] for record in read_records(path, parse_metrics, skipped)] == [1, 2, 3]
    assert skipped == {"metrics.jsonl": 3}
    backwards: Counter[str] = Counter()
    assert [record["step"] for record in records_backwards(path, parse_metrics, skipped=backwards)] == [3, 2, 1]
    assert backwards == skipped
    assert skipped_summary(skipped | {"events.jsonl": 1, "lock": 0}) == "4 (1 in events.jsonl, 3 in metrics.jsonl)"
    assert skipped_summary({}) == skipped_summary({"lock": 0}) == ""


def test_a_folder_in_the_place_of_a_file_of_records_is_counted_as_unreadable(run: RunDir) -> None:
    (run.path / "events.jsonl").mkdir()
    assert run.events() == []
    assert list(run.events_backwards()) == []
    assert run.skipped == {"events.jsonl": 1}


@pytest.mark.parametrize(
    "text",
    [
        "", "{", "3", "[" * 10**5, '{"state": "done", "code": 0, "step": "7", "reason": ""}',
        '{"state": "done", "code": 0, "step": -7, "reason": ""}',
        '{"state": "gone", "code": 0, "step": 7, "reason": ""}',
        '{"state": "done", "code": 0, "step": 7}', '{"state": "done", "code": 0, "step": 7, "reason": 3}',
        '{"state": "done", "code": 0, "step": ' + "9" * 5000 + ', "reason": ""}',
    ],
    ids=range(10),
)  # fmt: skip
def test_a_damaged_exit_counts_as_skipped(run: RunDir, text: str) -> None:
    (run.path / "exit.json").write_text(text)
    assert run.exit() is None
    assert run.skipped == {"exit.json": 1}
    run.write_exit(Exit(state="done", code=0, step=7, reason=""))
    assert run.exit() == Exit(state="done", code=0, step=7, reason="")
    assert not run.skipped.total()


@pytest.mark.parametrize("text", ["", "{", "3", "null", "[" * 10**5, '{"shards": 3, "key": "k"}', '{"key": "k"}'])
def test_a_damaged_file_that_is_one_record_is_named(run: RunDir, text: str) -> None:
    for name, read in {"data.json": run.data, "origins.json": run.origins, "place.json": run.location}.items():
        (run.path / name).write_text(text)
        with pytest.raises(UserError, match=f"{name} is missing or damaged"):
            read()
    (run.path / "seen.json").write_text(text)
    assert run.seen() is None


@pytest.mark.parametrize(
    "text",
    [
        "", "- a", "name: [", "\0", "x: " + "[" * 10**4, "until: {steps: " + "9" * 5000 + "}", "name: 3\nmore: 1",
        "\n".join(["a0: &a0 [x, x]", *(f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]" for i in range(1, 30))]),
    ],
    ids=range(8),
)  # fmt: skip
def test_an_invalid_spec_is_damaged(run: RunDir, text: str) -> None:
    with pytest.raises(Damaged):
        parse_spec(text.encode())
    (run.path / "spec.yaml").write_text(text)
    with pytest.raises(UserError, match=r"spec.yaml is missing or damaged"):
        run.any_spec()


def test_a_spec_is_read_by_the_model_of_its_kind() -> None:
    assert isinstance(parse_spec(b"{name: a, script: b.py}"), ScriptSpec)
    assert isinstance(parse_spec(b"{name: a, data: {path: b}, until: {steps: 1}}"), RunSpec)


def test_the_last_seen_view_has_the_fields_that_readers_use(run: RunDir) -> None:
    run.write_seen({"asked": 1.0, "view": {"state": "failed", "step": 7, "more": [1]}})
    assert run.seen() == {
        "asked": 1.0,
        "view": {"state": "failed", "step": 7, "reason": "", "remedy": "", "more": [1]},
        "ended": False,
        "unread": "",
    }
    run.write_seen({"asked": 1.0, "view": {"state": "failed", "step": "7"}})
    assert run.seen() is None


def test_the_reason_why_a_record_is_damaged_is_one_line() -> None:
    with pytest.raises(Damaged, match=r"^step: Input should be a valid integer$"):
        typed(Exit, '{"state": "done", "code": 0, "step": "7", "reason": ""}')


def unchanged(record: Any) -> Any:
    return record


def test_only_complete_lines_are_returned_and_each_once(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    tail = Tail(path)
    assert list(tail.records(unchanged)) == []
    path.write_text('{"a": 1}\n{"a": ')
    assert list(tail.records(unchanged)) == [{"a": 1}]
    with path.open("a") as file:
        file.write('2}\n\n{"torn\n{"a": 3}\n')
    assert list(tail.records(unchanged)) == [{"a": 2}, {"a": 3}]
    assert list(tail.records(unchanged)) == []
    assert tail.skipped == 1


def test_from_now_skips_existing_records(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_text('{"old": 1}\n')
    tail = Tail.from_now(path)
    with path.open("a") as file:
        file.write('{"new": 1}\n')
    assert list(tail.records(unchanged)) == [{"new": 1}]


def test_records_are_read_backwards_without_torn_lines(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    assert list(records_backwards(path, unchanged)) == []
    path.write_text('{"kind": "a", "n": 1}\n{"torn\n\n3\n{"kind": "b", "n": 2}\n{"kind": "a", "n": 3}\n{"n": ')
    assert [record["n"] for record in records_backwards(path, unchanged)] == [3, 2, 1]
    assert [record["n"] for record in records_backwards(path, unchanged, b'"kind": "a"')] == [3, 1]
