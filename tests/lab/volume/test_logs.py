"""What a run in a real cluster has written down is read back, by whoever can see it."""

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
from tests.lab.volume.run_there import There, logged, of_the_run
from tests.waiting import until


def test_logs_are_read_after_the_pods_are_gone_through_one_reader(there: There) -> None:
    logged(there)
    first = there.stoker("logs", there.name).stdout.decode().splitlines()
    assert first == [f"step {second} of 0" for second in range(30)]
    reader = there.remote().make()
    uid = there.kubectl.json("get", "pod", reader)["metadata"]["uid"]
    all_ranks = there.stoker("logs", there.name, "--all", "--tail", "2").stdout.decode().splitlines()
    assert all_ranks == [f"[{rank}] step {second} of {rank}" for second in (28, 29) for rank in (0, 1)]
    record = json.loads(there.stoker("logs", there.name, "--rank", "1", "--json", "--tail", "1").stdout)
    assert record["line"] == "step 29 of 1"
    said = there.stoker("logs", there.name, "--rank", "7", code=2).stderr.decode()
    assert said == f"stoker: run '{there.name}' has no log of rank 7. It has logs of ranks 0, 1\n"
    assert there.kubectl.json("get", "pod", reader)["metadata"]["uid"] == uid


def test_a_live_pod_is_looked_through_and_no_reader_is_made(there: There, live: str) -> None:
    assert live
    logged(there)
    there.kubectl("delete", "pods", "--selector=stoker.dev/reader=shared", "--now")
    assert there.stoker("logs", there.name, "--tail", "1").stdout.decode() == "step 29 of 0\n"
    assert not there.pods("stoker.dev/reader=shared")


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
        words = open(path).read().split(chr(0))
    except OSError:  # it ended meanwhile
        continue
    if "logs" in words:
        print(words)
"""


@pytest.mark.parametrize("how", [pytest.param(signal.SIGINT, marks=pytest.mark.soak), signal.SIGKILL])
def test_who_stops_following_leaves_no_process_in_the_pod(there: There, lab: Any, how: signal.Signals) -> None:
    logged(there)
    pod = of_the_run(there, lab, HOLDS.replace("NAME", there.name), until="Running")
    argv = [sys.executable, "-m", "stoker", "logs", there.name, "-f"]
    with subprocess.Popen(argv, cwd=there.folder, stdout=subprocess.PIPE) as follower:
        assert follower.stdout is not None
        assert follower.stdout.readline() == b"step 0 of 0\n"
        followers = there.kubectl("exec", pod, "--", "python3", "-c", FOLLOWERS)
        follower.send_signal(how if followers else signal.SIGKILL)
    assert '"follow": true' in followers
    until(lambda: not there.kubectl("exec", pod, "--", "python3", "-c", FOLLOWERS), seconds=20, every_s=0.5)


def test_python_reads_what_a_run_in_the_cluster_has_written_down(there: There, lab: Any) -> None:
    run = open_run(there.run.path)
    of_the_run(there, lab, "print('[0] begun')", until="Succeeded")
    logged(there)
    assert list(run.metrics()) == [], "no step has been logged"
    files = {"metrics.jsonl": b'{"step": 1, "loss": 2.5}\n', "events.jsonl": b'{"time": 1.0, "kind": "started"}\n'}
    upload([Item(files=dict(files), into=f"runs/{there.name}")], there.remote())
    metrics = run.metrics()
    assert (metrics if isinstance(metrics, list) else metrics.to_dict("records")) == [{"step": 1, "loss": 2.5}]
    events = run.events()
    assert events[0]["kind"] == "started"
    told = [one for one in events if one["kind"] == "cluster"]
    assert told
    assert not any("stoker-reader" in str(one) for one in told), "a reader that runs share is no part of their story"
    assert list(run.logs(rank=None, tail=1)) == ["[0] step 29 of 0", "[1] step 29 of 1"]


def test_what_is_not_on_the_volume_yet_is_told_by_the_pods(there: There, live: str) -> None:
    assert live
    assert there.stoker("logs", there.name).stdout.decode() == "from rank zero\n"
    assert "[1] from rank one" in there.stoker("logs", there.name, "--all").stdout.decode()


def test_where_nobody_sees_the_volume_the_pods_tell(there: There, lab: Any) -> None:
    pod = of_the_run(there, lab, "print('[0] the last words')", until="Succeeded")
    replace(there.ref, volume="nothing").write(there.run)
    assert there.stoker("logs", there.name).stdout.decode() == "the last words\n"
    there.kubectl("delete", "pod", pod, "--now")
    assert "has no volume claim 'nothing'" in there.stoker("logs", there.name, code=2).stderr.decode()


def test_who_may_not_exec_is_told_which_role_would_allow_it(there: There, tmp_path: Path) -> None:
    there.remote().make()
    there.kubectl("create", "serviceaccount", "looker")
    there.kubectl("create", "role", "looker", "--verb=get,list,watch", "--resource=pods,persistentvolumeclaims")
    there.kubectl("create", "rolebinding", "looker", "--role=looker", f"--serviceaccount={there.ref.namespace}:looker")
    token = there.kubectl("create", "token", "looker").strip()
    config = yaml.safe_load(Path(os.environ["KUBECONFIG"]).read_text())
    config["users"][0]["user"] = {"token": token}
    mine = tmp_path / "kubeconfig"
    mine.write_text(yaml.safe_dump(config))
    argv = [sys.executable, "-m", "stoker", "logs", there.name]
    environment = os.environ | {"KUBECONFIG": str(mine)}
    done = subprocess.run(argv, cwd=there.folder, capture_output=True, text=True, env=environment)
    assert done.returncode == 2, done.stdout
    assert "you may not get pods/exec" in done.stderr  # a websocket begins with a GET
    assert "kind: Role" in done.stderr
