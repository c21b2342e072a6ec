"""`stoker status`, `events` and `stop` of a run that lives in a cluster."""

import json
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict

from stoker.cli import output
from stoker.cli.events import say_skipped
from stoker.launch.command_word import command_word
from stoker.launch.kubernetes import reach
from stoker.observe.cluster import ClusterView, own_events, view
from stoker.observe.cluster import events as cluster_events
from stoker.observe.pods import PodRow
from stoker.rundir import Record, RunDir
from stoker.spec import contract
from stoker.spec.errors import RunFailed, StokerError

POLL = 1.0  # seconds between two looks
AGAIN = 5.0  # seconds between two looks at events: each reads all that the namespace has
WORD = 10.0  # seconds between two words of a command that waits
SETTLE = 10.0  # seconds in which a job may go after its pods
PATIENCE = 660.0  # seconds: a supervisor gives a save ten minutes, then ends its workers
WIDTH = 70  # characters of why a pod waits; --json has all of it
MOST = 40  # pods that are shown one by one
HEAD = ("NODE", "RANKS", "POD", "STATE", "ON", "RESTARTS", "SINCE", "WHY")
LIVING = ("running", "waiting", "restarting", "stopping")


def details(one: ClusterView) -> str:
    """What the cluster adds to a run's status."""
    states = Counter(pod.state for pod in one.pods)
    machines = len({pod.machine for pod in one.pods if pod.machine})
    images = sorted({pod.image for pod in one.pods if pod.image}) or [one.image]
    rows = [
        (
            "cluster",
            f"{f'context {one.context}' if one.context else 'the one this pod is in'}, namespace {one.namespace}",
        ),
        ("job", one.job),
        ("nodes", one.wanted),
        ("pods", ", ".join(f"{count} {state}" for state, count in states.most_common()) or "none"),
        ("on", f"{machines} node{'s' * (machines != 1)} of the cluster"),
        ("image", ", ".join(images)),
        ("volume", one.volume),
    ]
    if one.unread:
        rows.append(("records", f"not read: {output.printable(one.unread)}"))
    shown = sorted(one.pods, key=lambda pod: pod.state in ("Running", "Succeeded"))[:MOST]  # what is wrong comes first
    text = output.pairs(rows)
    if shown:
        text += "\n\n" + output.table(HEAD, [_cells(pod) for pod in sorted(shown, key=_order)])
    if len(one.pods) > MOST:
        text += f"\n{len(one.pods) - MOST} more pods; --json has all of them"
    return text


def events(run: RunDir, *, follow: bool, show: Callable[[Record], None]) -> int:
    """Its own and the cluster's, as one story."""
    backend, place = reach(run)
    told: set[int] = set()
    warned = False
    while True:
        state = backend.state(place)
        live = follow and state is not None and state.state in LIVING
        news = cluster_events(run, backend.cluster)
        try:
            news += own_events(run, backend.cluster, state)
        except StokerError as e:
            if not warned:
                show({"time": time.time(), "kind": "note", "text": f"its own events cannot be read: {e}"})
                warned = True
        for record in sorted(news, key=lambda one: float(one["time"])):
            key = hash(json.dumps(record, sort_keys=True))
            if key not in told:
                told.add(key)
                show(record)
        if not live:
            say_skipped(run.skipped)
            return contract.EXIT_DONE
        time.sleep(AGAIN)


def stop(run: RunDir, *, say: Callable[[str], None], as_json: bool) -> int:
    backend, place = reach(run)
    stopped = backend.delete(place)
    if stopped:
        say(f"asked run '{run.name}' to save and end …")
        _await_end(run, lambda: backend.ended(place), backend.cluster.kubectl, say)
        _await_tidy(lambda: backend.state(place) is None)
    now = view(run, backend.cluster)
    if as_json:
        print(json.dumps(asdict(now) | {"stopped": stopped}))
    elif stopped:
        again = f"stoker launch {command_word(run)}"
        say(f"run '{run.name}' has ended at step {now.step} ({now.state}); it goes on with: {again}")
    else:
        say(f"run '{run.name}' is not running ({now.state})")
    return contract.EXIT_DONE


def _await_end(run: RunDir, ended: Callable[[], bool], kubectl: str, say: Callable[[str], None]) -> None:
    began, said = time.monotonic(), 0.0
    while not ended():
        waited = time.monotonic() - began
        if waited > PATIENCE:
            raise RunFailed(
                f"run '{run.name}' has not ended in {output.duration(waited)}",
                remedy=f"See what holds it: {kubectl} get pods -l {contract.LABEL_RUN}={run.name}",
            )
        if waited - said >= WORD:
            said = waited
            say(f"waiting for its pods to save and go ({output.duration(waited)})")
        time.sleep(POLL)


def _await_tidy(tidy: Callable[[], bool]) -> None:
    """A job of a few pods is gone a moment after them; one of thousands is left to the cluster."""
    end = time.monotonic() + SETTLE
    while not tidy() and time.monotonic() < end:
        time.sleep(POLL / 4)


def _cells(pod: PodRow) -> tuple[str, ...]:
    return (
        "-" if pod.node is None else str(pod.node),
        pod.ranks or "-",
        pod.pod,
        pod.state,
        pod.machine or "-",
        str(pod.restarts),
        f"{output.duration(max(0.0, time.time() - pod.since))}" if pod.since else "-",
        _short(output.printable(pod.reason)),
    )


def _short(text: str) -> str:
    return text if len(text) <= WIDTH else f"{text[: WIDTH - 1]}…"


def _order(pod: PodRow) -> tuple[bool, int, str]:
    return (pod.node is None, pod.node or 0, pod.pod)
