"""`on.rendezvous: etcd` on the real cluster: the add-on, torch's own agents in two pods, and what is left."""

import json
import time
from pathlib import Path

import pytest

from stoker.cli.main import main

SCRIPT = Path(__file__).parents[2] / "examples" / "03-script" / "train.py"
PATIENCE = 300.0


def test_a_script_on_two_nodes_gets_its_ranks_through_etcd(
    lab, namespace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("KUBECONFIG", str(lab.kubeconfig))
    monkeypatch.chdir(tmp_path)

    def stoker(*words: str, code: int = 0) -> str:
        assert main(list(words)) == code, capsys.readouterr().err
        said = capsys.readouterr()
        return said.out if code == 0 else said.err

    where = [f"on.volume={namespace.volume}", f"on.namespace={namespace.name}", "on.kind=kubernetes", "on.cpu=0.1"]
    where += [f"on.image=http://{lab.base}", f"on.registry=http://{lab.registry}/tests/runs", "on.nodes=2"]
    words = [f"script={SCRIPT}", "args=[--steps, '20']", "name=mine", "on.workers=2", "on.rendezvous=etcd", *where]
    assert "has no Service 'etcd-client'. Create it: stoker addon etcd" in stoker("launch", *words, code=2)
    stoker("addon", "etcd", "--image", lab.etcd, "--namespace", namespace.name)
    name = json.loads(stoker("launch", *words, "--json"))["name"]
    end = time.monotonic() + PATIENCE
    while (now := json.loads(stoker("status", name, "--json")))["state"] != "done":
        assert now["state"] in ("waiting", "running", "restarting"), now
        assert time.monotonic() < end, now
        time.sleep(1)
    assert now["step"] == 20
    assert "loss" in stoker("logs", name)
    assert "Rendezvous version 1 is complete" in stoker("shell", name, "--", "cat", "logs/agent-0.log")
    assert stoker("addon", "etcd", "--namespace", namespace.name, "--remove").count("removed") == 4
