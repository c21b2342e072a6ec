"""`why` reports no cause for a healthy run, and the right one when the network is cut."""

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from lab import host
from lab.places import NODES, REGISTRY
from stoker.backends.kubernetes.jobs import KINDS
from stoker.rundir import RunDir
from tests.lab.why.faulty_runs import wait

TRAINING = [
    "model.layers=1", "model.heads=2", "model.width=32", "model.context=64", "data.tokenizer.train=300",
    "batch.sequences=8", "batch.length=32", "until.steps=39", "checkpoint.every=20", "eval.every=0",
    "log.every=1", "log.tensorboard=false", "precision=fp32", "compile=false", "on.workers=1",
]  # fmt: skip
STEADY = """
import time

def rest(record):
    time.sleep(0.3)  # a constant pace, whatever else is running
"""


def test_healthy_runs_of_every_kind_have_no_cause(
    lab, namespace, stoker, books: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Scripts that sleep, and a training run from its first step to its end."""
    (tmp_path / "train.py").write_text("import time\nwhile True: time.sleep(1)\n")
    (tmp_path / "steady.py").write_text(STEADY)
    monkeypatch.syspath_prepend(str(tmp_path))
    on = ["on.kind=kubernetes", f"on.volume={namespace.volume}", f"on.namespace={namespace.name}", "on.grace=1s"]
    on += [f"on.image=http://{lab.base}", f"on.registry=http://{REGISTRY}/tests/runs"]

    def launched(name: str, job: str, *overrides: str) -> str:
        record = json.loads(stoker("launch", *overrides, *on, f"name={name}", f"on.job={job}", "--json"))
        return Path(record["folder"]).name

    def state(name: str) -> str:
        return str(json.loads(stoker("status", name, "--json"))["state"])

    def assert_healthy(name: str) -> None:
        answer = json.loads(stoker("why", name, "--json"))
        assert (answer["id"], answer["others"]) == (None, []), answer

    sleeping = [launched(f"healthy-{job}", job, "script=train.py") for job in KINDS]
    learner = launched("learner", "jobset", f"data.path={books}", "callbacks=[steady:rest]", *TRAINING)
    assert wait(lambda: json.loads(stoker("status", learner, "--json"))["step"] > 0, learner)
    assert_healthy(learner)
    for name in sleeping:
        assert wait(lambda name=name: state(name) == "running", name)
        assert_healthy(name)
    assert_healthy(learner)
    assert wait(lambda: state(learner) == "done", learner)
    assert_healthy(learner)
    for name in sleeping:
        stoker("stop", name)


def test_a_closed_port_and_a_broken_dns_are_distinguished(lab, namespace, stoker, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("import time\nwhile True: time.sleep(1)\n")
    overrides = [
        "script=train.py",
        "on.kind=kubernetes",
        f"on.volume={namespace.volume}",
        f"on.namespace={namespace.name}",
    ]
    overrides += [
        f"on.image=http://{lab.base}",
        f"on.registry=http://{REGISTRY}/tests/runs",
        "on.nodes=2",
        "on.grace=1s",
    ]
    run = RunDir(Path(json.loads(stoker("launch", *overrides, "--json"))["folder"]))
    assert wait(lambda: len(json.loads(stoker("status", run.name, "--json"))["nodes"]) == 2)
    assert json.loads(stoker("why", run.name, "--json"))["id"] is None
    assert "nothing is wrong" in stoker("why", run.name)
    pods = namespace.kubectl.json("get", "pods", "-l", f"stoker.dev/run={run.name}")["items"]
    first, second = (pod["status"]["podIP"] for pod in pods)
    with dropped("-p", "tcp", "--dport", "29400", between=(first, second)):
        assert "names resolve" in wait_for_cause(stoker, run, "port-closed")["cause"]
        with (
            dropped("-p", "udp", "--dport", "53", between=(first, "")),
            dropped("-p", "udp", "--dport", "53", between=(second, "")),
        ):
            wait_for_cause(stoker, run, "dns-broken")
    assert wait(lambda: json.loads(stoker("why", run.name, "--json"))["id"] is None)


@contextlib.contextmanager
def dropped(*match: str, between: tuple[str, str]) -> Iterator[None]:
    """Let every node drop these packets between two addresses, in both directions, or from the first to any."""
    first, second = between
    directions = [(first, second), (second, first)] if second else [(first, "")]
    rules = [["-s", source, *(["-d", target] if target else []), *match, "-j", "DROP"] for source, target in directions]
    nodes = [host.alive()[name] for name in NODES]
    with contextlib.ExitStack() as undo:
        for rule in rules:
            for node in nodes:
                node.run("iptables", "-I", "FORWARD", *rule)
                undo.callback(node.run, "iptables", "-D", "FORWARD", *rule)
        yield


def wait_for_cause(stoker, run: RunDir, cause: str) -> dict[str, Any]:
    answer: dict[str, Any] = {}

    def is_reported() -> bool:
        answer.update(json.loads(stoker("why", run.name, "--json")))
        return bool(answer["id"] == cause)

    wait(is_reported)
    return answer
