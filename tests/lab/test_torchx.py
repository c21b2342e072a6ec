"""The command line of TorchX starts a run on the real Volcano, with the losses of the same run on this machine."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from stoker.cli.main import main
from stoker.rundir import RunDir
from tests.waiting import PATIENCE_S

STEPS = 12
RUN = f"""
name: tale
model: {{layers: 1, heads: 2, width: 32, context: 64}}
batch: {{sequences: 8, length: 32}}
until: {{steps: {STEPS}}}
checkpoint: {{every: 6}}
eval: {{every: 0}}
log: {{every: 1, tensorboard: false}}
precision: fp32
compile: false
"""


def test_a_run_of_two_nodes_with_two_workers_has_the_losses_of_one_machine(
    lab, namespace, books: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("KUBECONFIG", str(lab.kubeconfig))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "run.yaml").write_text(RUN)
    data = [f"data.path={books}", "data.tokenizer.train=300"]

    def stoker(*words: str) -> str:
        assert main(list(words)) == 0, capsys.readouterr().err
        return capsys.readouterr().out

    on = [f"on.volume={namespace.volume}", "on.cpu=0.1", "on.nodes=2", "on.workers=2"]
    on += [f"on.image=http://{lab.base}", f"on.registry=http://{lab.registry}/tests/runs"]
    component = ["stoker.cli.torchx:app", "--run", "run.yaml", *data, *on]
    cfg = f"queue=default,namespace={namespace.name}"
    handle = torchx("run", "-s", "kubernetes", "--workspace", "", "-cfg", cfg, *component).strip()
    name = handle.rpartition(":")[2]
    assert handle == f"kubernetes://torchx/{namespace.name}:{name}"

    deadline = time.monotonic() + PATIENCE_S
    while (now := json.loads(stoker("status", name, "--json")))["state"] != "done":
        assert now["state"] in ("waiting", "running", "restarting"), now
        assert time.monotonic() < deadline, now
        time.sleep(1)
    assert now["step"] == STEPS
    assert sorted((pod["node"], pod["pod"]) for pod in now["pods"]) == [(i, f"{name}-node-{i}-0") for i in range(2)]
    assert all(f"[{rank}]" in stoker("logs", name, "--all") for rank in range(4))
    namespace.kubectl("wait", "--for=jsonpath={.status.state.phase}=Completed", f"vcjob/{name}", "--timeout=300s")
    assert "SUCCEEDED" in torchx("status", handle)
    assert "node 1" in torchx("log", f"{handle}/node/1")

    stoker("train", "run.yaml", *data, "name=here", "on.workers=4")
    (tmp_path / "copy").mkdir()
    stoker("cp", f"{name}:metrics.jsonl", "copy")
    on_cluster, here = (RunDir(tmp_path / folder).metrics() for folder in ("copy", "runs/here"))
    losses = [record["loss"] for record in here]
    assert [record["loss"] for record in on_cluster] == pytest.approx(losses, abs=1e-5)


@pytest.mark.soak
def test_why_reports_that_the_queue_of_a_run_is_full(
    lab, namespace, books: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("KUBECONFIG", str(lab.kubeconfig))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "run.yaml").write_text(RUN)

    def stoker(*words: str) -> dict[str, Any]:
        assert main([*words, "--json"]) == 0, capsys.readouterr().err
        record: dict[str, Any] = json.loads(capsys.readouterr().out)
        return record

    head = {"apiVersion": "scheduling.volcano.sh/v1beta1", "kind": "Queue", "metadata": {"name": namespace.name}}
    lab.kubectl.apply(head | {"spec": {"weight": 1, "capability": {"cpu": "50m"}}})
    try:
        on = [f"on.volume={namespace.volume}", "on.cpu=0.1", "on.nodes=2", "on.workers=1"]
        on += [f"on.image=http://{lab.base}", f"on.registry=http://{lab.registry}/tests/runs"]
        component = ["stoker.cli.torchx:app", "--run", "run.yaml", f"data.path={books}", *on]
        cfg = f"queue={namespace.name},namespace={namespace.name}"
        handle = torchx(
            "run", "-s", "kubernetes", "--workspace", "", "-cfg", cfg, *component, "data.tokenizer.train=300"
        )
        name = handle.strip().rpartition(":")[2]
        deadline = time.monotonic() + PATIENCE_S
        while (cause := stoker("why", name))["id"] != "queue-over-capacity":
            assert time.monotonic() < deadline, cause
            time.sleep(1)
        assert stoker("status", name)["why"]["id"] == "queue-over-capacity"
        stoker("stop", name)
    finally:
        lab.kubectl("delete", "queue", namespace.name, "--wait=false", check=False)


def torchx(*words: str) -> str:
    argv = [sys.executable, "-m", "torchx.cli.main", *words]
    done = subprocess.run(argv, capture_output=True, text=True, env=os.environ | {"COLUMNS": "200"})
    assert done.returncode == 0, done.stderr
    return done.stdout
