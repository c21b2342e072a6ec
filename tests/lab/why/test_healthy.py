"""A run that is well yields no cause; one whose network is cut yields the right one."""

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
from tests.lab.why.bed import wait

TRAINING = [
    "model.layers=1", "model.heads=2", "model.width=32", "model.context=64", "data.tokenizer.train=300",
    "batch.sequences=8", "batch.length=32", "until.steps=39", "checkpoint.every=20", "eval.every=0",
    "log.every=1", "log.tensorboard=false", "precision=fp32", "compile=false", "on.workers=1",
]  # fmt: skip
STEADY = """
import time

def rest(record):
    time.sleep(0.3)  # so that its pace is its own, whoever else computes
"""


def test_runs_of_every_kind_that_are_well_yield_none(
    lab, namespace, stoker, books: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Scripts that sleep, and a training, from its first steps to its end."""
    (tmp_path / "train.py").write_text("import time\nwhile True: time.sleep(1)\n")
    (tmp_path / "steady.py").write_text(STEADY)
    monkeypatch.syspath_prepend(str(tmp_path))
    where = ["on.kind=kubernetes", f"on.volume={namespace.volume}", f"on.namespace={namespace.name}", "on.grace=1s"]
    where += [f"on.image=http://{lab.base}", f"on.registry=http://{REGISTRY}/tests/runs"]

    def launched(name: str, job: str, *words: str) -> str:
        found = json.loads(stoker("launch", *words, *where, f"name={name}", f"on.job={job}", "--json"))
        return Path(found["folder"]).name

    def state(name: str) -> str:
        return str(json.loads(stoker("status", name, "--json"))["state"])

    def well(name: str) -> None:
        told = json.loads(stoker("why", name, "--json"))
        assert (told["id"], told["others"]) == (None, []), told

    asleep = [launched(f"well-{job}", job, "script=train.py") for job in KINDS]
    learner = launched("learner", "jobset", f"data.path={books}", "callbacks=[steady:rest]", *TRAINING)
    assert wait(lambda: json.loads(stoker("status", learner, "--json"))["step"] > 0, learner)
    well(learner)
    for name in asleep:
        assert wait(lambda name=name: state(name) == "running", name)
        well(name)
    well(learner)
    assert wait(lambda: state(learner) == "done", learner)
    well(learner)
    for name in asleep:
        stoker("stop", name)


def test_a_healthy_run_yields_none_and_a_closed_port_is_not_a_broken_name_server(
    lab, namespace, stoker, tmp_path: Path
) -> None:
    (tmp_path / "train.py").write_text("import time\nwhile True: time.sleep(1)\n")
    words = ["script=train.py", "on.kind=kubernetes", f"on.volume={namespace.volume}", f"on.namespace={namespace.name}"]
    words += [f"on.image=http://{lab.base}", f"on.registry=http://{REGISTRY}/tests/runs", "on.nodes=2", "on.grace=1s"]
    run = RunDir(Path(json.loads(stoker("launch", *words, "--json"))["folder"]))
    assert wait(lambda: len(json.loads(stoker("status", run.name, "--json"))["nodes"]) == 2)
    assert json.loads(stoker("why", run.name, "--json"))["id"] is None
    assert "nothing is wrong" in stoker("why", run.name)
    pods = namespace.kubectl.json("get", "pods", "-l", f"stoker.dev/run={run.name}")["items"]
    first, second = (pod["status"]["podIP"] for pod in pods)
    with dropped("-p", "tcp", "--dport", "29400", between=(first, second)):
        assert "names resolve" in caused(stoker, run, "port-closed")["cause"]
        with (
            dropped("-p", "udp", "--dport", "53", between=(first, "")),
            dropped("-p", "udp", "--dport", "53", between=(second, "")),
        ):
            caused(stoker, run, "dns-broken")
    assert wait(lambda: json.loads(stoker("why", run.name, "--json"))["id"] is None)


@contextlib.contextmanager
def dropped(*words: str, between: tuple[str, str]) -> Iterator[None]:
    """Packets that no node passes on, from one to the other and back."""
    one, other = between
    both = [(one, other), (other, one)] if other else [(one, "")]
    rules = [["-s", source, *(["-d", target] if target else []), *words, "-j", "DROP"] for source, target in both]
    nodes = [host.alive()[name] for name in NODES]
    with contextlib.ExitStack() as undo:
        for rule in rules:
            for node in nodes:
                node.run("iptables", "-I", "FORWARD", *rule)
                undo.callback(node.run, "iptables", "-D", "FORWARD", *rule)
        yield


def caused(stoker, run: RunDir, wanted: str) -> dict[str, Any]:
    found: dict[str, Any] = {}

    def told() -> bool:
        found.update(json.loads(stoker("why", run.name, "--json")))
        return bool(found["id"] == wanted)

    wait(told)
    return found
