"""Answers from a pod, parsed on this machine."""

import json
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from stoker.backends.kubernetes.environment import of_rank
from stoker.backends.kubernetes.place import ClusterPlace
from stoker.backends.kubernetes.volume.remote import VolumeRun
from stoker.backends.local.environment import WorkerEnvironment
from stoker.backends.transfer.frames import PeerLost
from stoker.rundir import RunDir
from stoker.rundir.logs import LogLine
from stoker.spec.errors import UserError
from stoker.spec.run import ScriptSpec

PLACE = ClusterPlace(
    kind="kubernetes", context=None, namespace="lab", job="job", run="demo", volume="shared", image="img:1"
)
UNUSED: Any = object()
"""A cluster that gets no request."""


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    run = RunDir(tmp_path / "demo")
    run.create(ScriptSpec.model_validate({"name": "demo", "script": "t.py", "on": {"kind": "kubernetes"}}), None)
    return run


@pytest.mark.parametrize(
    "reply", ['{"time": 1.0, "rank": "0", "line": "x"}', '{"rank": 0}', "[]", "hello", "[" * 10**5]
)
def test_the_answer_of_another_version_is_a_one_line_error(run: RunDir, reply: str) -> None:
    remote = VolumeRun(run, PLACE, cluster=UNUSED)
    assert remote.parse_reply(LogLine, '{"time": 1.0, "rank": 0, "line": "x"}').line == "x"
    with pytest.raises(UserError, match="image img:1 has another version of Stoker than this machine"):
        remote.parse_reply(LogLine, reply)


class Pods(VolumeRun):
    """The first of three pods is lost while it is asked, and the last has the worker."""

    def live(self, most: int = 5) -> list[str]:
        return ["a", "b", "c"][:most]

    def ask_pod(self, pod: str, verb: str, **options: object) -> Any:  # noqa: ARG002 (it is always environment)
        if pod == "a":
            raise PeerLost("pod a broke off")
        pid = 7 if pod == "c" and options["rank"] == 0 else None
        environment = WorkerEnvironment(
            rank=0, pid=pid, host="h", pod=pod, node=None, command=[], environment={}, versions={}, devices={},
            limits={}, mounts=[],
        )  # fmt: skip
        yield json.dumps(asdict(environment))


class Empty(VolumeRun):
    """Without pods."""

    def live(self, most: int = 5) -> list[str]:  # noqa: ARG002 (there are none)
        return []


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ('!{"kind": "NotFound", "problem": "there is no run", "remedy": ""}', "there is no run"),
        ('!{"kind": "Unknown", "problem": "of a newer version", "remedy": ""}', "of a newer version"),
        ('!{"problem": 5}', "another version of Stoker"),
        ("! is not JSON", "another version of Stoker"),
    ],
)
def test_an_error_that_a_pod_reports_is_a_one_line_error(
    run: RunDir, monkeypatch: pytest.MonkeyPatch, line: str, problem: str
) -> None:
    execution: Any = SimpleNamespace(lines=lambda: iter([line]), close=lambda: None)
    remote = VolumeRun(run, PLACE, cluster=UNUSED)
    monkeypatch.setattr(remote, "execute", lambda *_: execution)
    with pytest.raises(UserError, match=problem):
        list(remote.ask_pod("demo-0", "logs"))


def test_a_run_without_pods_is_named_with_its_cluster_and_a_remedy(run: RunDir) -> None:
    cluster: Any = SimpleNamespace(display_name="context lab")
    empty = Empty(run, PLACE, cluster=cluster)
    with pytest.raises(UserError, match=r"no running pod in namespace lab of context lab.*stoker launch demo$"):
        of_rank(empty, 0)


def test_a_pod_that_is_lost_while_it_is_asked_does_not_hide_the_others(run: RunDir) -> None:
    assert of_rank(Pods(run, PLACE, cluster=UNUSED), 0).pod == "c"
    with pytest.raises(UserError, match=r"has rank 5 now \(pod a broke off\)"):
        of_rank(Pods(run, PLACE, cluster=UNUSED), 5)
