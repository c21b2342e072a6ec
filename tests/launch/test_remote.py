"""What is said in a pod, as it is understood here."""

import json
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from stoker.cli.env import _in_a_cluster
from stoker.launch.remote import Remote
from stoker.launch.surroundings import Surroundings
from stoker.launch.transfer.frames import Cut
from stoker.observe.logs import LogLine
from stoker.rundir import PlaceRef, RunDir
from stoker.spec.errors import UserError
from stoker.spec.run import ScriptSpec

REF = PlaceRef(kind="kubernetes", context=None, namespace="lab", job="job", run="demo", volume="shared", image="img:1")
NOBODY: Any = object()
"""A cluster that is not asked."""


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    run = RunDir(tmp_path / "demo")
    run.create(ScriptSpec.model_validate({"name": "demo", "script": "t.py", "on": {"kind": "kubernetes"}}), None)
    return run


@pytest.mark.parametrize("said", ['{"time": 1.0, "rank": "0", "line": "x"}', '{"rank": 0}', "[]", "hello", "[" * 10**5])
def test_the_words_of_another_version_are_one_line(run: RunDir, said: str) -> None:
    remote = Remote(run, REF, cluster=NOBODY)
    assert remote.understood(LogLine, '{"time": 1.0, "rank": 0, "line": "x"}').line == "x"
    with pytest.raises(UserError, match="Stoker of image img:1 is of another version than this one"):
        remote.understood(LogLine, said)


class Pods(Remote):
    """Of three pods the first is lost while it is asked, and the last has the worker."""

    def live(self, most: int = 5) -> list[str]:
        return ["a", "b", "c"][:most]

    def ask_pod(self, pod: str, verb: str, *words: str) -> Any:  # noqa: ARG002 (it is always env)
        if pod == "a":
            raise Cut("pod a broke off")
        pid = 7 if pod == "c" and words[1] == "0" else None
        about = Surroundings(
            rank=0, pid=pid, host="h", pod=pod, node=None, command=[], environment={}, versions={}, devices={},
            limits={}, mounts=[],
        )  # fmt: skip
        yield json.dumps(asdict(about))


class Empty(Remote):
    """Without pods."""

    def live(self, most: int = 5) -> list[str]:  # noqa: ARG002 (there are none)
        return []


def test_a_run_without_pods_is_told_where_and_what_to_type(run: RunDir) -> None:
    there: Any = SimpleNamespace(who="context lab")
    empty = Empty(run, REF, cluster=there)
    with pytest.raises(UserError, match=r"no running pod in namespace lab of context lab.*stoker launch demo$"):
        _in_a_cluster(empty, 0)


def test_a_pod_that_is_lost_while_it_is_asked_does_not_hide_the_others(run: RunDir) -> None:
    assert _in_a_cluster(Pods(run, REF, cluster=NOBODY), 0).pod == "c"
    with pytest.raises(UserError, match=r"has rank 5 now \(pod a broke off\)"):
        _in_a_cluster(Pods(run, REF, cluster=NOBODY), 5)
