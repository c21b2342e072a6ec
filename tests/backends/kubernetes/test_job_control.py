"""The requests to the API server, and their order, when a run is checked, created and resumed."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from stoker.backends.backend import Submission
from stoker.backends.kubernetes.job_control import JobControl
from stoker.backends.kubernetes.plan import NO_CLUSTER, plan, planned_place
from stoker.kube import connect
from stoker.kube.session import TRIES
from stoker.spec.errors import UserError
from stoker.spec.load import load
from stoker.spec.run import AnySpec
from tests.backends.kubernetes.served import NOT_FOUND, served

CLAIM = {"spec": {"accessModes": ["ReadWriteMany"]}}
UNKNOWN = (
    'Internal error occurred: failed calling webhook "x.dev": tls: failed to verify certificate: '
    "x509: certificate signed by unknown authority"
)


def planned(*overrides: str) -> tuple[AnySpec, Submission]:
    on = ["on.kind=kubernetes", "on.image=img:1", "on.volume=vol", "on.namespace=team", "secrets=[TOKEN]"]
    spec = load(None, ["data=x", "until.steps=1", *on, *overrides]).spec
    return spec, plan(spec, NO_CLUSTER, Path("runs/demo-abcd"))


def control(spec: AnySpec, message: Callable[[str], None] = lambda _: None) -> JobControl:
    return JobControl(connect(spec.on.context, spec.on.namespace), message)


@pytest.fixture(autouse=True)
def token(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOKEN", "hunter2")


def existing(path: str, *, run: str = "demo-abcd") -> dict[str, Any]:
    """An object of that run."""
    metadata = {"name": path.rpartition("/")[2], "uid": "u", "labels": {"stoker.dev/run": run}}
    return {"apiVersion": "v1", "kind": "Some", "metadata": metadata}


def test_objects_of_an_earlier_job_are_deleted_before_they_are_created_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    requests: list[tuple[str, str]] = []
    paths = {"/api/v1/namespaces/team/secrets/demo-abcd-env", "/api/v1/namespaces/team/services/demo-abcd"}

    def answer(method: str, path: str, query: str) -> tuple[int, Any]:
        if method == "PATCH" and "dryRun" in query:
            return 200, existing(path)
        requests.append((method, path.rpartition("/")[2]))
        if method == "PATCH":
            return 200, existing(path)
        if path not in paths:
            return 404, NOT_FOUND
        if method == "DELETE":
            paths.remove(path)
        elif path.endswith("-env"):
            return 403, {"message": 'secrets is forbidden: cannot get resource "secrets" in API group ""'}
        return 200, existing(path)

    with served(tmp_path, answer) as file:
        monkeypatch.setenv("KUBECONFIG", str(file))
        spec, submission = planned()
        control(spec).submit(submission)
    for name in ("demo-abcd-env", "demo-abcd"):
        assert requests.index(("DELETE", name)) < requests.index(("PATCH", name))
    assert not paths


@pytest.mark.parametrize(
    ("job", "path", "kind"),
    [
        ("job", "/api/v1/namespaces/team/secrets/demo-abcd-env", "Secret"),
        ("job", "/api/v1/namespaces/team/services/demo-abcd", "Service"),
        ("job", "/apis/batch/v1/namespaces/team/jobs/demo-abcd", "Job"),
        ("jobset", "/apis/batch/v1/namespaces/team/jobs/demo-abcd-node-0", "Job"),
    ],
)
def test_an_object_of_the_same_name_that_is_not_of_the_run_is_neither_deleted_nor_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, job: str, path: str, kind: str
) -> None:
    changes: list[tuple[str, str]] = []

    def answer(method: str, requested: str, query: str) -> tuple[int, Any]:
        if method != "GET" and "dryRun" not in query:
            changes.append((method, requested))
        if requested.endswith(("/batch/v1", "/v1alpha2")):
            return 200, {"resources": [{"name": "jobs"}, {"name": "jobsets"}]}
        if requested.endswith(("/team", "/vol")):
            return 200, CLAIM
        return (200, existing(path, run="another")) if requested == path else (404, NOT_FOUND)

    with served(tmp_path, answer) as file:
        monkeypatch.setenv("KUBECONFIG", str(file))
        spec, submission = planned(f"on.job={job}")
        jobs = control(spec)
        for launch in (lambda: jobs.check(spec, NO_CLUSTER, submission), lambda: jobs.submit(submission)):
            with pytest.raises(UserError, match=f"has a {kind} '{path.rpartition('/')[2]}' that does not belong to"):
                launch()
    assert not changes


def test_a_webhook_whose_certificate_is_not_known_yet_is_waited_for_with_a_message(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    patches: list[str] = []

    def answer(method: str, path: str, _: str) -> tuple[int, Any]:
        if method != "PATCH":
            return 404, NOT_FOUND
        patches.append(path)
        return (500, {"message": UNKNOWN}) if len(patches) <= TRIES else (200, existing(path))

    messages: list[str] = []
    with served(tmp_path, answer) as file:
        monkeypatch.setenv("KUBECONFIG", str(file))
        spec, submission = planned()
        control(spec, messages.append).submit(submission)
    [line] = messages
    assert "the webhook of its operator does not answer; waiting for it, at most 90 seconds" in line


def volcano(dry_runs: list[str], *queues: str) -> Callable[[str, str, str], tuple[int, Any]]:
    """Answers of a cluster with Volcano and these queues; records the dry runs."""

    def answer(method: str, path: str, _: str) -> tuple[int, Any]:
        last = path.rpartition("/")[2]
        if method == "PATCH":
            dry_runs.append(path)
            return 200, existing(path)
        if last in ("v1alpha1", "v1beta1"):
            return 200, {"resources": [{"name": "jobs"}, {"name": "queues"}]}
        if last == "queues":
            return 200, {"metadata": {}, "items": [{"metadata": {"name": name}} for name in queues]}
        if "/queues/" in path and last in queues:
            return 200, {"status": {"state": "Open"}}
        return (200, CLAIM) if last in ("team", "vol") else (404, NOT_FOUND)

    return answer


@pytest.mark.parametrize("queue_exists", [True, False])
def test_an_existing_queue_is_not_dry_run_so_that_no_right_to_create_it_is_needed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, queue_exists: bool
) -> None:
    dry_runs: list[str] = []
    with served(tmp_path, volcano(dry_runs, *(["nlp"] if queue_exists else []))) as file:
        monkeypatch.setenv("KUBECONFIG", str(file))
        spec, submission = planned("on.job=vcjob", "on.queue=nlp", "on.queue_make={weight: 1}")
        control(spec).check(spec, NO_CLUSTER, submission)
    assert any("/queues/nlp" in path for path in dry_runs) is not queue_exists
    assert dry_runs[-1].endswith("/jobs/demo-abcd")


@pytest.mark.parametrize(
    ("overrides", "problem"),
    [
        ([], "on.queue is not set, and context lab has no Volcano queue 'default'.* Name one: .*there are: nlp"),
        (["on.queue=cv"], "on.queue names Volcano queue 'cv', .*There are: nlp; .*'on.queue_make={weight: 1}'$"),
    ],
)
def test_a_default_queue_is_not_reported_as_the_users(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, overrides: list[str], problem: str
) -> None:
    with served(tmp_path, volcano([], "nlp")) as file:
        monkeypatch.setenv("KUBECONFIG", str(file))
        spec, submission = planned("on.job=vcjob", *overrides)
        with pytest.raises(UserError, match=problem):
            control(spec).check(spec, NO_CLUSTER, submission)


@pytest.mark.parametrize("version", ["v1beta1", "v1beta2"])
def test_a_kueue_queue_is_read_in_the_version_that_the_cluster_prefers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: str
) -> None:
    root = f"/apis/kueue.x-k8s.io/{version}"
    queues = f"{root}/namespaces/team/localqueues"
    objects: dict[str, Any] = {
        "/apis": {"groups": [{"name": "kueue.x-k8s.io", "preferredVersion": {"version": version}}]},
        "/apis/batch/v1": {"resources": [{"name": "jobs"}]},
        root: {"resources": [{"name": "localqueues", "kind": "LocalQueue", "namespaced": True}]},
        queues: {"metadata": {}, "items": [existing("nlp")]},
        f"{queues}/nlp": existing("nlp"),
        "/api/v1/namespaces/team": existing("team"),
        "/api/v1/namespaces/team/persistentvolumeclaims/vol": CLAIM,
    }

    def answer(method: str, path: str, _: str) -> tuple[int, Any]:
        if method == "PATCH":
            return 200, existing(path)
        return (200, objects[path]) if path in objects else (404, NOT_FOUND)

    with served(tmp_path, answer) as file:
        monkeypatch.setenv("KUBECONFIG", str(file))
        spec, submission = planned("on.queue=nlp")
        control(spec).check(spec, NO_CLUSTER, submission)
        spec, submission = planned("on.queue=cv")
        with pytest.raises(UserError, match=r"on\.queue names LocalQueue 'cv', .*There are: nlp"):
            control(spec).check(spec, NO_CLUSTER, submission)


def test_a_pod_that_has_not_started_gets_no_grace_period(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def pod(name: str, **state: Any) -> dict[str, Any]:
        statuses = [{"name": "pytorch", **state}] if state else []
        return {"metadata": {"name": name}, "spec": {}, "status": {"containerStatuses": statuses}}

    pods = [
        pod("new"),
        pod("in-init", state={"waiting": {"reason": "PodInitializing"}}),
        pod("running", state={"running": {}}),
        pod("again", state={"waiting": {"reason": "CrashLoopBackOff"}}, lastState={"terminated": {"exitCode": 1}}),
        pod("ended", state={"terminated": {"exitCode": 0}}),
    ]
    deleted: list[str] = []

    def answer(method: str, path: str, _: str) -> tuple[int, Any]:
        if method == "DELETE":
            deleted.append(path.rpartition("/")[2])
            return 200, existing(path)
        if path.endswith("/pods"):
            return 200, {"metadata": {"resourceVersion": "1"}, "items": pods}
        return (200, existing(path) | {"status": {"active": 1}}) if path.endswith("/demo-abcd") else (404, NOT_FOUND)

    with served(tmp_path, answer) as file:
        monkeypatch.setenv("KUBECONFIG", str(file))
        spec, submission = planned("on.job=job")
        assert control(spec).delete(planned_place(submission))
    assert deleted[:2] == ["demo-abcd", "pods"]
    assert sorted(deleted[2:]) == ["in-init", "new"]
