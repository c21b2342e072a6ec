"""`net` and `top` on the real cluster: faults made on its nodes are diagnosed, and the workers are shown."""

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

TIMEOUT_S = 180.0
WAITS = "import pathlib, time\nwhile not pathlib.Path('/stoker/stop').exists(): time.sleep(0.5)\n"
Stoker = Callable[..., Any]


@pytest.fixture
def stoker(lab, namespace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys) -> Stoker:
    """Runs the command with --json in a folder with a script that waits, and returns the parsed output."""
    monkeypatch.setenv("KUBECONFIG", str(lab.kubeconfig))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text(WAITS)

    def call(*words: str, code: int = 0, in_lab: bool = False) -> Any:
        argv = [*words, "--json"]
        if in_lab:
            argv += [f"on.namespace={namespace.name}", f"on.image=http://{lab.base}"]
            argv += [f"on.registry=http://{lab.registry}/tests/runs"]
        assert main(argv) == code, capsys.readouterr()
        return json.loads(capsys.readouterr().out)

    return call


@pytest.fixture
def run(stoker: Stoker, namespace, request: pytest.FixtureRequest) -> str:
    """A run of two nodes with two workers each, all of them running. The parameter is the kind of job."""
    overrides = ["script=train.py", "on.kind=kubernetes", "on.nodes=2", "on.workers=2", "on.grace=1s", "on.cpu=1.2"]
    overrides += [f"on.job={request.param}", f"on.volume={namespace.volume}"]
    name: str = stoker("launch", *overrides, in_lab=True)["name"]
    deadline = time.monotonic() + TIMEOUT_S
    while len(stoker("top", name)["workers"]) < 4:
        assert time.monotonic() < deadline
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


def dropping(node: str, match: str, *, table: str = "filter", chain: str = "FORWARD"):
    iptables = f"iptables -w -t {table}"
    return on_node(node, f"{iptables} -I {chain} {match} -j DROP", f"{iptables} -D {chain} {match} -j DROP")


def test_temporary_pods_find_a_wrong_interface_and_leave_nothing(stoker: Stoker, namespace) -> None:
    result = stoker("net", "--nodes", "2", "--gpus", "env.GLOO_SOCKET_IFNAME=eth7", code=3, in_lab=True)
    (finding,) = result["findings"]
    assert finding["id"] == "interface"
    assert "GLOO_SOCKET_IFNAME=eth7; it has lo, eth0" in result["verdict"]
    assert {host["site"]["machine"] for host in result["hosts"]} == {"node-1", "node-2"}
    assert [gpu["devices"][0]["right"] for gpu in result["gpus"].values()] == [True, True]
    deadline = time.monotonic() + TIMEOUT_S
    while namespace.kubectl("get", "jobs,pods,services", "--output=name"):
        assert time.monotonic() < deadline
        time.sleep(0.5)


@pytest.mark.parametrize("run", ["trainjob"], indirect=True)  # its container has another name
def test_each_fault_between_the_pods_of_a_run_is_found_and_its_workers_are_shown(
    stoker: Stoker, run: str, namespace
) -> None:
    """The slow link is made with `tc tbf`, which limits the rate: not every kernel has netem."""
    usage = stoker("top", run)
    assert (usage["name"], usage["state"], usage["unread"]) == (run, "running", {})
    workers = usage["workers"]
    assert [worker["rank"] for worker in workers] == [0, 1, 2, 3]
    assert len({worker["pod"] for worker in workers}) == len({worker["machine"] for worker in workers}) == 2
    assert all(worker["memory"] > 2**20 and worker["gpu"] is None for worker in workers)

    healthy = stoker("net", run)
    assert (healthy["findings"], healthy["lost"]) == ([], {})
    assert "no fault between 2 nodes" in healthy["verdict"]
    first, second = (host["site"] for host in healthy["hosts"])
    assert (first["machine"] != second["machine"], len(healthy["links"])) == (True, 1)
    assert {name["error"] for name in healthy["names"]} == {""}

    connecting = f"-d {second['address']} -s {first['address']} -p tcp --syn"
    faults = {
        "port": dropping(second["machine"], f"-d {second['address']} -p tcp --syn --dport {contract.NODES_PORT}"),
        "dns": dropping(
            second["machine"], f"-s {second['address']} -p udp --dport 53", table="mangle", chain="PREROUTING"
        ),
        "unreachable": dropping(second["machine"], connecting),
        "slow": on_node(
            second["machine"],
            "tc qdisc add dev eth0 root tbf rate 50mbit burst 64kb latency 50ms",
            "tc qdisc delete dev eth0 root",
        ),
    }
    verdicts = {}
    for kind, fault in faults.items():
        with fault:
            result = stoker("net", run, code=3)
        assert [finding["id"] for finding in result["findings"]] == [kind], result["findings"]
        assert result["seconds"] < 60
        verdicts[kind] = result["verdict"]
    assert f"port {contract.NODES_PORT} is dropped without an answer from {first['pod']}" in verdicts["port"]
    assert f"DNS does not answer in pod {second['pod']} on {second['machine']}" in verdicts["dns"]
    assert f"{first['pod']} does not reach {second['pod']}: no packet arrives" in verdicts["unreachable"]
    assert f"{first['pod']} and {second['pod']} is slow, 0.0" in verdicts["slow"]

    argv = [sys.executable, "-m", "stoker", "top", run, "--watch", "1"]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as watching:
        assert watching.stdout is not None
        next(line for line in watching.stdout if line.split()[:3] == ["RANK", "POD", "NODE"])
        namespace.kubectl("exec", first["pod"], "--", "touch", "/stoker/stop")
        lines = watching.stdout.read().splitlines()
    assert (watching.returncode, lines[-1]) == (0, "no worker is running")
    assert f"run {run}  done" in lines[-2]
