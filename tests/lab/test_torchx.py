"""TorchX's own command line starts a run on the real Volcano: it ends as the run does here, under one name."""

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

STEPS = 12
PATIENCE = 300.0
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


def test_a_run_of_two_nodes_with_two_workers_succeeds_with_the_losses_that_it_has_here(
    lab, namespace, books: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("KUBECONFIG", str(lab.kubeconfig))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "run.yaml").write_text(RUN)
    data = [f"data.path={books}", "data.tokenizer.train=300"]

    def stoker(*words: str) -> str:
        assert main(list(words)) == 0, capsys.readouterr().err
        return capsys.readouterr().out

    where = [f"on.volume={namespace.volume}", "on.cpu=0.1", "on.nodes=2", "on.workers=2"]
    where += [f"on.image=http://{lab.base}", f"on.registry=http://{lab.registry}/tests/runs"]
    component = ["stoker.cli.torchx:app", "--run", "run.yaml", *data, *where]
    cfg = f"queue=default,namespace={namespace.name}"
    handle = torchx("run", "-s", "kubernetes", "--workspace", "", "-cfg", cfg, *component).strip()
    name = handle.rpartition(":")[2]
    assert handle == f"kubernetes://torchx/{namespace.name}:{name}"

    end = time.monotonic() + PATIENCE
    while (now := json.loads(stoker("status", name, "--json")))["state"] != "done":
        assert now["state"] in ("waiting", "running", "restarting"), now
        assert time.monotonic() < end, now
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
    there, here = (RunDir(tmp_path / folder).metrics() for folder in ("copy", "runs/here"))
    assert [one["loss"] for one in there] == pytest.approx([one["loss"] for one in here], abs=1e-5)


@pytest.mark.soak
def test_a_run_in_a_queue_that_is_full_is_told_why_it_waits(
    lab, namespace, books: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("KUBECONFIG", str(lab.kubeconfig))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "run.yaml").write_text(RUN)

    def stoker(*words: str) -> dict[str, Any]:
        assert main([*words, "--json"]) == 0, capsys.readouterr().err
        found: dict[str, Any] = json.loads(capsys.readouterr().out)
        return found

    head = {"apiVersion": "scheduling.volcano.sh/v1beta1", "kind": "Queue", "metadata": {"name": namespace.name}}
    lab.kubectl.apply(head | {"spec": {"weight": 1, "capability": {"cpu": "50m"}}})
    try:
        where = [f"on.volume={namespace.volume}", "on.cpu=0.1", "on.nodes=2", "on.workers=1"]
        where += [f"on.image=http://{lab.base}", f"on.registry=http://{lab.registry}/tests/runs"]
        component = ["stoker.cli.torchx:app", "--run", "run.yaml", f"data.path={books}", *where]
        cfg = f"queue={namespace.name},namespace={namespace.name}"
        handle = torchx(
            "run", "-s", "kubernetes", "--workspace", "", "-cfg", cfg, *component, "data.tokenizer.train=300"
        )
        name = handle.strip().rpartition(":")[2]
        end = time.monotonic() + PATIENCE
        while (told := stoker("why", name))["id"] != "queue-over-capacity":
            assert time.monotonic() < end, told
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
