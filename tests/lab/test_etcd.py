"""`on.rendezvous: etcd` on the real cluster: the add-on, torch's own agents in two pods, and its removal."""

import json
import time
from pathlib import Path

import pytest

from stoker.cli.main import main
from tests.waiting import PATIENCE_S

SCRIPT = Path(__file__).parents[2] / "examples" / "03-script" / "train.py"


def test_a_script_on_two_nodes_gets_its_ranks_through_etcd(
    lab, namespace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("KUBECONFIG", str(lab.kubeconfig))
    monkeypatch.chdir(tmp_path)

    def stoker(*words: str, code: int = 0) -> str:
        assert main(list(words)) == code, capsys.readouterr().err
        output = capsys.readouterr()
        return output.out if code == 0 else output.err

    on = [f"on.volume={namespace.volume}", f"on.namespace={namespace.name}", "on.kind=kubernetes", "on.cpu=0.1"]
    on += [f"on.image=http://{lab.base}", f"on.registry=http://{lab.registry}/tests/runs", "on.nodes=2"]
    overrides = [f"script={SCRIPT}", "args=[--steps, '20']", "name=mine", "on.workers=2", "on.rendezvous=etcd", *on]
    assert "has no Service 'etcd-client'. Create it: stoker addon etcd" in stoker("launch", *overrides, code=2)
    stoker("addon", "etcd", "--image", lab.etcd, "--namespace", namespace.name)
    name = json.loads(stoker("launch", *overrides, "--json"))["name"]
    deadline = time.monotonic() + PATIENCE_S
    while (now := json.loads(stoker("status", name, "--json")))["state"] != "done":
        assert now["state"] in ("waiting", "running", "restarting"), now
        assert time.monotonic() < deadline, now
        time.sleep(1)
    assert now["step"] == 20
    assert "loss" in stoker("logs", name)
    assert "Rendezvous version 1 is complete" in stoker("shell", name, "--", "cat", "logs/agent-0.log")
    assert stoker("addon", "etcd", "--namespace", namespace.name, "--remove").count("removed") == 4
