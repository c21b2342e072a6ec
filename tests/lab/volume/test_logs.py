"""Logs, metrics and events of a run in a real cluster are read from the volume or from the pods."""

import json
import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from stoker.api.run import open_run
from stoker.backends.transfer.client import upload
from stoker.backends.transfer.send import Item
from tests.lab.volume.cluster_run import ClusterRun, start_run_pod, write_logs
from tests.waiting import until


def test_logs_are_read_after_the_pods_are_gone_through_one_reader(cluster_run: ClusterRun) -> None:
    write_logs(cluster_run)
    first = cluster_run.stoker("logs", cluster_run.name).stdout.decode().splitlines()
    assert first == [f"step {second} of 0" for second in range(30)]
    reader = cluster_run.remote().make()
    uid = cluster_run.kubectl.json("get", "pod", reader)["metadata"]["uid"]
    all_ranks = cluster_run.stoker("logs", cluster_run.name, "--all", "--tail", "2").stdout.decode().splitlines()
    assert all_ranks == [f"[{rank}] step {second} of {rank}" for second in (28, 29) for rank in (0, 1)]
    record = json.loads(cluster_run.stoker("logs", cluster_run.name, "--rank", "1", "--json", "--tail", "1").stdout)
    assert record["line"] == "step 29 of 1"
    error = cluster_run.stoker("logs", cluster_run.name, "--rank", "7", code=2).stderr.decode()
    assert error == f"stoker: run '{cluster_run.name}' has no log of rank 7. It has logs of ranks 0, 1\n"
    assert cluster_run.kubectl.json("get", "pod", reader)["metadata"]["uid"] == uid


def test_a_live_pod_is_used_and_no_reader_is_created(cluster_run: ClusterRun, live: str) -> None:
    assert live
    write_logs(cluster_run)
    cluster_run.kubectl("delete", "pods", "--selector=stoker.dev/reader=shared", "--now")
    assert cluster_run.stoker("logs", cluster_run.name, "--tail", "1").stdout.decode() == "step 29 of 0\n"
    assert not cluster_run.pods("stoker.dev/reader=shared")


HOLDS = """
import pathlib, time
from stoker.rundir import RunDir
with RunDir(pathlib.Path("/stoker/runs/NAME")).lock():
    time.sleep(600)
"""
FOLLOWERS = """
import glob
for path in glob.glob("/proc/[0-9]*/cmdline"):
    try:
        argv = open(path).read().split(chr(0))
    except OSError:  # it has ended
        continue
    if "logs" in argv:
        print(argv)
"""


@pytest.mark.parametrize("number", [pytest.param(signal.SIGINT, marks=pytest.mark.soak), signal.SIGKILL])
def test_a_stopped_follower_leaves_no_process_in_the_pod(
    cluster_run: ClusterRun, lab: Any, number: signal.Signals
) -> None:
    write_logs(cluster_run)
    pod = start_run_pod(cluster_run, lab, HOLDS.replace("NAME", cluster_run.name), until="Running")
    argv = [sys.executable, "-m", "stoker", "logs", cluster_run.name, "-f"]
    with subprocess.Popen(argv, cwd=cluster_run.folder, stdout=subprocess.PIPE) as follower:
        assert follower.stdout is not None
        assert follower.stdout.readline() == b"step 0 of 0\n"
        followers = cluster_run.kubectl("exec", pod, "--", "python3", "-c", FOLLOWERS)
        follower.send_signal(number if followers else signal.SIGKILL)
    assert '"follow": true' in followers
    until(lambda: not cluster_run.kubectl("exec", pod, "--", "python3", "-c", FOLLOWERS), seconds=20, every_s=0.5)


def test_the_python_api_reads_the_records_of_a_run_in_the_cluster(cluster_run: ClusterRun, lab: Any) -> None:
    run = open_run(cluster_run.run.path)
    start_run_pod(cluster_run, lab, "print('[0] started')", until="Succeeded")
    write_logs(cluster_run)
    assert list(run.metrics()) == [], "no step has been logged"
    files = {"metrics.jsonl": b'{"step": 1, "loss": 2.5}\n', "events.jsonl": b'{"time": 1.0, "kind": "started"}\n'}
    upload([Item(files=dict(files), into=f"runs/{cluster_run.name}")], cluster_run.remote())
    metrics = run.metrics()
    assert (metrics if isinstance(metrics, list) else metrics.to_dict("records")) == [{"step": 1, "loss": 2.5}]
    events = run.events()
    assert events[0]["kind"] == "started"
    cluster_events = [event for event in events if event["kind"] == "cluster"]
    assert cluster_events
    assert not any("stoker-reader" in str(event) for event in cluster_events), "a shared reader is not part of the run"
    assert list(run.logs(rank=None, tail=1)) == ["[0] step 29 of 0", "[1] step 29 of 1"]


def test_logs_that_are_not_on_the_volume_yet_come_from_the_pods(cluster_run: ClusterRun, live: str) -> None:
    assert live
    assert cluster_run.stoker("logs", cluster_run.name).stdout.decode() == "from rank zero\n"
    assert "[1] from rank one" in cluster_run.stoker("logs", cluster_run.name, "--all").stdout.decode()


def test_logs_come_from_the_pods_when_the_volume_cannot_be_read(cluster_run: ClusterRun, lab: Any) -> None:
    pod = start_run_pod(cluster_run, lab, "print('[0] the last line')", until="Succeeded")
    replace(cluster_run.ref, volume="nothing").write(cluster_run.run)
    assert cluster_run.stoker("logs", cluster_run.name).stdout.decode() == "the last line\n"
    cluster_run.kubectl("delete", "pod", pod, "--now")
    assert "has no volume claim 'nothing'" in cluster_run.stoker("logs", cluster_run.name, code=2).stderr.decode()


def test_a_missing_permission_to_exec_is_reported_with_the_role(cluster_run: ClusterRun, tmp_path: Path) -> None:
    cluster_run.remote().make()
    cluster_run.kubectl("create", "serviceaccount", "viewer")
    cluster_run.kubectl("create", "role", "viewer", "--verb=get,list,watch", "--resource=pods,persistentvolumeclaims")
    cluster_run.kubectl(
        "create", "rolebinding", "viewer", "--role=viewer", f"--serviceaccount={cluster_run.ref.namespace}:viewer"
    )
    token = cluster_run.kubectl("create", "token", "viewer").strip()
    config = yaml.safe_load(Path(os.environ["KUBECONFIG"]).read_text())
    config["users"][0]["user"] = {"token": token}
    kubeconfig = tmp_path / "kubeconfig"
    kubeconfig.write_text(yaml.safe_dump(config))
    argv = [sys.executable, "-m", "stoker", "logs", cluster_run.name]
    environment = os.environ | {"KUBECONFIG": str(kubeconfig)}
    done = subprocess.run(argv, cwd=cluster_run.folder, capture_output=True, text=True, env=environment)
    assert done.returncode == 2, done.stdout
    assert "you may not get pods/exec" in done.stderr  # a websocket begins with a GET
    assert "kind: Role" in done.stderr
