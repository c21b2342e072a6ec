"""The real cluster, and a new namespace for each test."""

import os
import subprocess
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import pytest

from lab import cluster, session
from lab.kubectl import Kubectl
from lab.places import IMAGES, KUBECONFIG, REGISTRY
from tests.lab.namespaces import VOLUME, fresh
from tests.lab.sharing import held
from tests.waiting import PATIENCE_S


@dataclass(frozen=True, kw_only=True, slots=True)
class Lab:
    kubeconfig: Path
    kubectl: Kubectl
    registry: str
    base: str
    """An image with Python, for training pods."""
    bare: str
    """An image without Python."""
    etcd: str
    """An image of an etcd with the v2 API."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Namespace:
    name: str
    volume: str
    """A claim that pods on both nodes can mount at once."""
    kubectl: Kubectl
    """Uses this namespace."""


Report = TypeVar("Report", pytest.TestReport, pytest.CollectReport)


@pytest.fixture(scope="session")
def able() -> None:
    """Skip tests on a machine that cannot run the lab."""
    if reason := cluster.unsupported():
        pytest.skip(reason)


@pytest.fixture(scope="session")
def lab(able: None) -> Iterator[Lab]:  # noqa: ARG001
    with session.joined():
        yield Lab(
            kubeconfig=KUBECONFIG,
            kubectl=cluster.kubectl(),
            registry=REGISTRY,
            base=IMAGES["base"],
            bare=IMAGES["bare"],
            etcd=IMAGES["etcd"],
        )


@pytest.fixture
def alone() -> None:
    """For a test that stops an operator: no other test uses the lab until this one has started the operator again."""


@pytest.fixture(autouse=True)
def turn(request: pytest.FixtureRequest) -> Iterator[None]:
    """Hold the lab, shared or alone, before any other fixture of the test and until all of them have ended."""
    if "lab" not in request.fixturenames:
        yield
        return
    request.getfixturevalue("lab")  # creates the state folder
    with held(alone="alone" in request.fixturenames):
        yield


@pytest.fixture
def namespace(lab: Lab) -> Iterator[Namespace]:
    with fresh(lab.kubectl) as kubectl:
        yield Namespace(name=kubectl.namespace, volume=VOLUME, kubectl=kubectl)


@pytest.fixture
def runtime(lab: Lab, namespace: Namespace) -> Iterator[str]:
    """A ClusterTrainingRuntime like Kubeflow's `torch-distributed`; it is deleted after the test."""
    container = {"name": "node", "image": lab.bare}
    job: dict[str, Any] = {"spec": {"template": {"spec": {"containers": [container]}}}}
    job["metadata"] = {"labels": {"trainer.kubeflow.org/trainjob-ancestor-step": "trainer"}}
    spec: dict[str, Any] = {"mlPolicy": {"numNodes": 1, "torch": {}}}
    spec["template"] = {"spec": {"replicatedJobs": [{"name": "node", "template": job}]}}
    head = {"apiVersion": "trainer.kubeflow.org/v1alpha1", "kind": "ClusterTrainingRuntime"}
    lab.kubectl.apply(head | {"metadata": {"name": namespace.name}, "spec": spec})
    yield namespace.name
    lab.kubectl("delete", "clustertrainingruntime", namespace.name, "--wait=false")


@pytest.fixture
def pod(lab: Lab, namespace: Namespace) -> Callable[..., str]:
    """Start a pod with the volume at /stoker, and return its name."""

    def start(name: str, *command: str, node: str = "", image: str = lab.base, **spec: Any) -> str:
        container = {
            "name": "main",
            "image": image,
            "command": list(command),
            "volumeMounts": [{"name": "volume", "mountPath": "/stoker"}],
        }
        volume = {"name": "volume", "persistentVolumeClaim": {"claimName": namespace.volume}}
        body = {"containers": [container], "volumes": [volume], "restartPolicy": "Never", **spec}
        if node:
            body["nodeSelector"] = {"kubernetes.io/hostname": node}
        namespace.kubectl.apply(
            {
                "apiVersion": "v1",
                "kind": "Pod",
                "metadata": {"name": name},
                "spec": {"terminationGracePeriodSeconds": 0, **body},
            }
        )
        return name

    return start


@pytest.fixture
def phase(namespace: Namespace) -> Callable[..., str]:
    """Wait until a pod is in one of these phases, and return its log."""

    def wait(name: str, *wanted: str) -> str:
        deadline = time.monotonic() + PATIENCE_S
        while True:
            phase = namespace.kubectl.json("get", "pod", name)["status"].get("phase")
            if phase in wanted:
                return namespace.kubectl("logs", name, check=False)
            assert phase not in {"Failed", "Succeeded"}, namespace.kubectl("logs", name, check=False)
            assert time.monotonic() < deadline, namespace.kubectl("describe", "pod", name)
            time.sleep(0.2)

    return wait


@pytest.fixture
def forwarded() -> Callable[[Kubectl, str, int], AbstractContextManager[int]]:
    """Forward a port of this machine to a port of a pod."""

    @contextmanager
    def forward(kubectl: Kubectl, pod: str, port: int) -> Iterator[int]:
        argv = kubectl.argv("port-forward", f"pod/{pod}", f":{port}")
        with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            line = process.stdout.readline()  # Forwarding from 127.0.0.1:40123 -> 8000
            try:
                yield int(line.split()[2].rpartition(":")[2])
            finally:
                process.terminate()

    return forward


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if "lab" in getattr(item, "fixturenames", []):
        report.user_properties.append(("lab", True))
    return no_skip(report)


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report() -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    return no_skip((yield))


def no_skip(report: Report) -> Report:
    """With CI=true, a lab test that is skipped has failed."""
    if report.skipped and not hasattr(report, "wasxfail") and os.environ.get("CI") == "true":
        report.outcome = "failed"
        skip: Any = report.longrepr  # file, line, reason
        report.longrepr = f"with CI=true no lab test may be skipped: {skip[2]}"
    return report
