"""The events of a run as events.jsonl has them, for tests that look at single fields."""

from typing import Any

from stoker.rundir import RunDir


def events_of(run: RunDir) -> list[dict[str, Any]]:
    return [event.record() for event in run.events()]
