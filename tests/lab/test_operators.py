"""Features of some kinds of jobs: queues, runtimes, webhooks that start late."""

import json
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from stoker.cli.main import main
from stoker.rundir import RunDir
from tests.waiting import PATIENCE_S, until

ENDS = {"spec": {"containers": [{"name": "pytorch", "command": ["python3", "-c", "print('it ran')"]}]}}
Stoker = Callable[..., str]


@pytest.fixture
def stoker(lab, namespace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys) -> Stoker:
    """Runs the command and returns its output. The pods that it launches print a line and exit."""
    monkeypatch.setenv("KUBECONFIG", str(lab.kubeconfig))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").touch()

    def call(*words: str, code: int = 0) -> str:
        argv = list(words)
        if words[0] == "launch":
            argv += ["script=train.py", "on.kind=kubernetes", f"on.volume={namespace.volume}"]
            argv += [f"on.image=http://{lab.base}", f"on.registry=http://{lab.registry}/tests/runs"]
            argv += [f"on.namespace={namespace.name}", f"on.pod={json.dumps(ENDS)}"]
        assert main(argv) == code, capsys.readouterr().err
        output = capsys.readouterr()
        return output.err if code else output.out

    return call


@pytest.fixture
def queue(lab, namespace) -> Iterator[str]:
    """A name for a Volcano queue, which is deleted after the test."""
    yield namespace.name
    lab.kubectl("delete", "queue.scheduling.volcano.sh", namespace.name, "--ignore-not-found", "--wait=false")


@pytest.fixture
def late_webhook(lab, namespace) -> Iterator[str]:
    """The name of a webhook for all Jobs of the namespace whose service has no pods."""
    name = namespace.name
    port = {"port": 443, "targetPort": 9443}
    namespace.kubectl.apply(
        {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": {"name": name},
            "spec": {"ports": [port], "selector": {"a": "b"}},
        }
    )
    rule = {"apiGroups": ["batch"], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["jobs"]}
    hook = {
        "name": "late.stoker.dev",
        "clientConfig": {"service": {"name": name, "namespace": name}},
        "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": name}},
        "rules": [rule],
        "sideEffects": "None",
        "admissionReviewVersions": ["v1"],
    }
    head = {"apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingWebhookConfiguration"}
    lab.kubectl.apply(head | {"metadata": {"name": name}, "webhooks": [hook]})
    yield name
    lab.kubectl("delete", "validatingwebhookconfiguration", name, "--ignore-not-found")


def wait_for_end(stoker: Stoker, run: RunDir) -> dict:
    deadline = time.monotonic() + PATIENCE_S
    while (now := json.loads(stoker("status", run.name, "--json")))["state"] not in ("done", "failed"):
        assert time.monotonic() < deadline, now
        time.sleep(0.5)
    return now


def launched(stoker: Stoker, *words: str) -> RunDir:
    return RunDir(Path(json.loads(stoker("launch", *words, "--json"))["folder"]))


def test_a_queue_is_created_on_request_and_stays(stoker: Stoker, queue: str, lab, namespace) -> None:
    run = launched(stoker, "on.job=vcjob", f"on.queue={queue}", "on.queue_make={weight: 2, reclaimable: false}")
    assert wait_for_end(stoker, run)["state"] == "done"
    created = lab.kubectl.json("get", "queue.scheduling.volcano.sh", queue)
    assert (created["spec"]["weight"], created["spec"]["reclaimable"]) == (2, False)
    assert "ownerReferences" not in created["metadata"]
    namespace.kubectl("delete", "jobs.batch.volcano.sh", run.name, "--wait=true")
    run = launched(stoker, "on.job=vcjob", f"on.queue={queue}", "on.queue_make={weight: 5}")
    assert (
        lab.kubectl.json("get", "queue.scheduling.volcano.sh", queue)["spec"]["weight"] == 2
    )  # an existing queue is not changed
    assert wait_for_end(stoker, run)["state"] == "done"


def test_a_run_uses_a_runtime_of_the_cluster(stoker: Stoker, runtime: str, namespace) -> None:
    run = launched(stoker, "on.job=trainjob", f"on.runtime={runtime}", "on.nodes=2", "on.cpu=0.1", "on.grace=7s")
    now = wait_for_end(stoker, run)
    assert now["state"] == "done"
    assert [pod["node"] for pod in now["pods"]] == [0, 1]
    pods = namespace.kubectl.json("get", "pods", "-l", f"stoker.dev/run={run.name}")["items"]
    for pod in pods:
        assert pod["spec"]["terminationGracePeriodSeconds"] == 7
        [container] = pod["spec"]["containers"]
        assert container["resources"]["requests"] == {"cpu": "100m"}
        assert {"name": "stoker", "mountPath": "/stoker"} in container["volumeMounts"]
        assert namespace.kubectl("logs", pod["metadata"]["name"]).strip() == "it ran"


def test_auto_chooses_a_kind_that_the_cluster_supports_and_prints_why(stoker: Stoker) -> None:
    output = stoker("launch", "on.job=auto")
    assert "Job.batch.volcano.sh" in output
    assert "Volcano is installed, and its pods start together or wait together" in output


def test_a_launch_waits_for_a_webhook_that_is_starting(stoker: Stoker, late_webhook: str, lab) -> None:
    create = ["create", "job", "x", "--image=x", "--dry-run=server", f"--namespace={late_webhook}"]
    until(lambda: lab.kubectl(*create, check=False) == "", every_s=0.2)
    removal = threading.Timer(3, lambda: lab.kubectl("delete", "validatingwebhookconfiguration", late_webhook))
    removal.start()
    try:
        run = launched(stoker)
    finally:
        removal.join()
    assert wait_for_end(stoker, run)["state"] == "done"
