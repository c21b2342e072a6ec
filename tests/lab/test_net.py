"""The network between the pods of the real cluster, broken on its nodes, and what is said of it; what workers use."""

import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from lab.host import alive
from stoker.cli.main import main
from stoker.spec import contract

PATIENCE = 180.0
WAITS = "import pathlib, time\nwhile not pathlib.Path('/stoker/enough').exists(): time.sleep(0.5)\n"
Stoker = Callable[..., Any]


@pytest.fixture
def stoker(lab, namespace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys) -> Stoker:
    """The command with --json, what it prints; in a folder with a script that waits."""
    monkeypatch.setenv("KUBECONFIG", str(lab.kubeconfig))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text(WAITS)

    def call(*words: str, code: int = 0, places: bool = False) -> Any:
        given = [*words, "--json"]
        if places:
            given += [f"on.namespace={namespace.name}", f"on.image=http://{lab.base}"]
            given += [f"on.registry=http://{lab.registry}/tests/runs"]
        assert main(given) == code, capsys.readouterr()
        return json.loads(capsys.readouterr().out)

    return call


@pytest.fixture
def run(stoker: Stoker, namespace, request: pytest.FixtureRequest) -> str:
    """A run of two nodes with two workers each, all of them up; a test says of which kind."""
    words = ["script=train.py", "on.kind=kubernetes", "on.nodes=2", "on.workers=2", "on.grace=1s", "on.cpu=1.2"]
    words += [f"on.job={request.param}", f"on.volume={namespace.volume}"]
    name: str = stoker("launch", *words, places=True)["name"]
    end = time.monotonic() + PATIENCE
    while len(stoker("top", name)["workers"]) < 4:
        assert time.monotonic() < end
        time.sleep(0.5)
    return name


@contextmanager
def on_node(name: str, add: str, delete: str) -> Iterator[None]:
    node = alive()[name]
    node.run(*add.split())
    try:
        yield
    finally:
        node.run(*delete.split())


def rule(node: str, words: str, *, table: str = "filter", chain: str = "FORWARD"):
    begun = f"iptables -w -t {table}"
    return on_node(node, f"{begun} -I {chain} {words} -j DROP", f"{begun} -D {chain} {words} -j DROP")


def test_pods_made_for_it_find_a_wrong_interface_and_leave_nothing(stoker: Stoker, namespace) -> None:
    found = stoker("net", "--nodes", "2", "--gpus", "env.GLOO_SOCKET_IFNAME=eth7", code=3, places=True)
    (one,) = found["findings"]
    assert one["id"] == "interface"
    assert "GLOO_SOCKET_IFNAME=eth7; it has lo, eth0" in found["verdict"]
    assert {host["site"]["machine"] for host in found["hosts"]} == {"node-1", "node-2"}
    assert [gpu["devices"][0]["right"] for gpu in found["gpus"].values()] == [True, True]
    end = time.monotonic() + PATIENCE
    while namespace.kubectl("get", "jobs,pods,services", "--output=name"):
        assert time.monotonic() < end
        time.sleep(0.5)


@pytest.mark.parametrize("run", ["trainjob"], indirect=True)  # whose container has a name of its own
def test_each_fault_between_the_pods_of_a_run_is_found_and_its_workers_are_seen(
    stoker: Stoker, run: str, namespace
) -> None:
    """The slow link is one of `tc tbf`, which bounds its rate: the kernel that the lab runs on has no netem."""
    used = stoker("top", run)
    assert (used["name"], used["state"], used["unread"]) == (run, "running", {})
    assert [one["rank"] for one in used["workers"]] == [0, 1, 2, 3]
    assert len({one["pod"] for one in used["workers"]}) == len({one["machine"] for one in used["workers"]}) == 2
    assert all(one["memory"] > 2**20 and one["gpu"] is None for one in used["workers"])

    healthy = stoker("net", run)
    assert (healthy["findings"], healthy["lost"]) == ([], {})
    assert "no fault between 2 nodes" in healthy["verdict"]
    first, second = (host["site"] for host in healthy["hosts"])
    assert (first["machine"] != second["machine"], len(healthy["links"])) == (True, 1)
    assert {name for one in healthy["names"] for name in [one["error"]]} == {""}

    new = f"-d {second['address']} -s {first['address']} -p tcp --syn"
    faults = {
        "port": rule(second["machine"], f"-d {second['address']} -p tcp --syn --dport {contract.NODES_PORT}"),
        "dns": rule(second["machine"], f"-s {second['address']} -p udp --dport 53", table="mangle", chain="PREROUTING"),
        "unreachable": rule(second["machine"], new),
        "slow": on_node(
            second["machine"],
            "tc qdisc add dev eth0 root tbf rate 50mbit burst 64kb latency 50ms",
            "tc qdisc delete dev eth0 root",
        ),
    }
    said = {}
    for kind, fault in faults.items():
        with fault:
            found = stoker("net", run, code=3)
        assert [one["id"] for one in found["findings"]] == [kind], found["findings"]
        assert found["seconds"] < 60
        said[kind] = found["verdict"]
    assert f"port {contract.NODES_PORT} is dropped without an answer from {first['pod']}" in said["port"]
    assert f"DNS does not answer in pod {second['pod']} on {second['machine']}" in said["dns"]
    assert f"{first['pod']} does not reach {second['pod']}: no packet arrives" in said["unreachable"]
    assert f"{first['pod']} and {second['pod']} is slow, 0.0" in said["slow"]

    argv = [sys.executable, "-m", "stoker", "top", run, "--watch", "1"]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as watching:
        assert watching.stdout is not None
        next(line for line in watching.stdout if line.split()[:3] == ["RANK", "POD", "NODE"])
        namespace.kubectl("exec", first["pod"], "--", "touch", "/stoker/enough")
        shown = watching.stdout.read().splitlines()
    assert (watching.returncode, shown[-1]) == (0, "no worker is running")
    assert f"run {run}  done" in shown[-2]
