"""What only some kinds of jobs have: queues, runtimes, webhooks that are late."""

import json
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from stoker.cli.main import main
from stoker.rundir import RunDir
from tests.waiting import until

PATIENCE = 300.0
ENDS = {"spec": {"containers": [{"name": "pytorch", "command": ["python3", "-c", "print('it ran')"]}]}}
Stoker = Callable[..., str]


@pytest.fixture
def stoker(lab, namespace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys) -> Stoker:
    """The command, its output; what it launches prints a line and ends."""
    monkeypatch.setenv("KUBECONFIG", str(lab.kubeconfig))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").touch()

    def call(*words: str, code: int = 0) -> str:
        given = list(words)
        if words[0] == "launch":
            given += ["script=train.py", "on.kind=kubernetes", f"on.volume={namespace.volume}"]
            given += [f"on.image=http://{lab.base}", f"on.registry=http://{lab.registry}/tests/runs"]
            given += [f"on.namespace={namespace.name}", f"on.pod={json.dumps(ENDS)}"]
        assert main(given) == code, capsys.readouterr().err
        said = capsys.readouterr()
        return said.err if code else said.out

    return call


@pytest.fixture
def queue(lab, namespace) -> Iterator[str]:
    """A name for a queue of Volcano's; it goes with the test."""
    yield namespace.name
    lab.kubectl("delete", "queue.scheduling.volcano.sh", namespace.name, "--ignore-not-found", "--wait=false")


@pytest.fixture
def late(lab, namespace) -> Iterator[str]:
    """A webhook that must see every Job of the namespace, and nobody who answers for it: what is its is so called."""
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


def ended(stoker: Stoker, run: RunDir) -> dict:
    end = time.monotonic() + PATIENCE
    while (now := json.loads(stoker("status", run.name, "--json")))["state"] not in ("done", "failed"):
        assert time.monotonic() < end, now
        time.sleep(0.5)
    return now


def launched(stoker: Stoker, *words: str) -> RunDir:
    return RunDir(Path(json.loads(stoker("launch", *words, "--json"))["folder"]))


def test_a_queue_is_made_when_asked_and_stays(stoker: Stoker, queue: str, lab, namespace) -> None:
    run = launched(stoker, "on.job=vcjob", f"on.queue={queue}", "on.queue_make={weight: 2, reclaimable: false}")
    assert ended(stoker, run)["state"] == "done"
    made = lab.kubectl.json("get", "queue.scheduling.volcano.sh", queue)
    assert (made["spec"]["weight"], made["spec"]["reclaimable"]) == (2, False)
    assert "ownerReferences" not in made["metadata"]
    namespace.kubectl("delete", "jobs.batch.volcano.sh", run.name, "--wait=true")
    run = launched(stoker, "on.job=vcjob", f"on.queue={queue}", "on.queue_make={weight: 5}")
    assert lab.kubectl.json("get", "queue.scheduling.volcano.sh", queue)["spec"]["weight"] == 2  # as others know it
    assert ended(stoker, run)["state"] == "done"


def test_a_run_is_laid_over_a_runtime_of_the_clusters(stoker: Stoker, runtime: str, namespace) -> None:
    run = launched(stoker, "on.job=trainjob", f"on.runtime={runtime}", "on.nodes=2", "on.cpu=0.1", "on.grace=7s")
    now = ended(stoker, run)
    assert now["state"] == "done"
    assert [pod["node"] for pod in now["pods"]] == [0, 1]
    pods = namespace.kubectl.json("get", "pods", "-l", f"stoker.dev/run={run.name}")["items"]
    for pod in pods:
        assert pod["spec"]["terminationGracePeriodSeconds"] == 7
        [container] = pod["spec"]["containers"]
        assert container["resources"]["requests"] == {"cpu": "100m"}
        assert {"name": "stoker", "mountPath": "/stoker"} in container["volumeMounts"]
        assert namespace.kubectl("logs", pod["metadata"]["name"]).strip() == "it ran"


def test_what_the_cluster_has_is_taken_and_why_is_told(stoker: Stoker) -> None:
    shown = stoker("launch", "on.job=auto")
    assert "Job.batch.volcano.sh" in shown
    assert "Volcano is installed, and its pods start together or wait together" in shown


def test_a_webhook_that_is_coming_up_is_waited_for(stoker: Stoker, late: str, lab) -> None:
    tried = ["create", "job", "x", "--image=x", "--dry-run=server", f"--namespace={late}"]
    until(lambda: lab.kubectl(*tried, check=False) == "", every_s=0.2)
    coming = threading.Timer(3, lambda: lab.kubectl("delete", "validatingwebhookconfiguration", late))
    coming.start()
    try:
        run = launched(stoker)
    finally:
        coming.join()
    assert ended(stoker, run)["state"] == "done"
