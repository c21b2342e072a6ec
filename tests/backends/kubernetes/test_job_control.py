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


def planned(*words: str) -> tuple[AnySpec, Submission]:
    given = ["on.kind=kubernetes", "on.image=img:1", "on.volume=vol", "on.namespace=team", "secrets=[TOKEN]"]
    spec = load(None, ["data=x", "until.steps=1", *given, *words]).spec
    return spec, plan(spec, NO_CLUSTER, Path("runs/demo-abcd"))


def control(spec: AnySpec, message: Callable[[str], None] = lambda _: None) -> JobControl:
    return JobControl(connect(spec.on.context, spec.on.namespace), message)


@pytest.fixture(autouse=True)
def token(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOKEN", "hunter2")


def made(path: str) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": "Some", "metadata": {"name": path.rpartition("/")[2], "uid": "u"}}


def test_objects_of_an_earlier_job_are_deleted_before_they_are_created_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[str, str]] = []
    there = {"/api/v1/namespaces/team/secrets/demo-abcd-env", "/api/v1/namespaces/team/services/demo-abcd"}

    def answer(method: str, path: str, _: str) -> tuple[int, Any]:
        asked.append((method, path.rpartition("/")[2]))
        if method == "PATCH":
            return 200, made(path)
        if path not in there:
            return 404, NOT_FOUND
        if method == "DELETE":
            there.remove(path)
        elif path.endswith("-env"):
            return 403, {"message": 'secrets is forbidden: cannot get resource "secrets" in API group ""'}
        return 200, made(path)

    with served(tmp_path, answer) as file:
        monkeypatch.setenv("KUBECONFIG", str(file))
        spec, submission = planned()
        control(spec).submit(submission)
    for name in ("demo-abcd-env", "demo-abcd"):
        assert asked.index(("DELETE", name)) < asked.index(("PATCH", name))
    assert not there


def test_a_webhook_whose_certificate_is_not_known_yet_is_waited_for_with_a_message(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tries: list[str] = []

    def answer(method: str, path: str, _: str) -> tuple[int, Any]:
        if method != "PATCH":
            return 404, NOT_FOUND
        tries.append(path)
        return (500, {"message": UNKNOWN}) if len(tries) <= TRIES else (200, made(path))

    said: list[str] = []
    with served(tmp_path, answer) as file:
        monkeypatch.setenv("KUBECONFIG", str(file))
        spec, submission = planned()
        control(spec, said.append).submit(submission)
    [line] = said
    assert "the webhook of its operator does not answer; waiting for it, at most 90 seconds" in line


def volcano(tried: list[str], *queues: str) -> Callable[[str, str, str], tuple[int, Any]]:
    """Answers of a cluster with Volcano and these queues; records the dry runs."""

    def answer(method: str, path: str, _: str) -> tuple[int, Any]:
        last = path.rpartition("/")[2]
        if method == "PATCH":
            tried.append(path)
            return 200, made(path)
        if last in ("v1alpha1", "v1beta1"):
            return 200, {"resources": [{"name": "jobs"}, {"name": "queues"}]}
        if last == "queues":
            return 200, {"metadata": {}, "items": [{"metadata": {"name": name}} for name in queues]}
        if "/queues/" in path and last in queues:
            return 200, {"status": {"state": "Open"}}
        return (200, CLAIM) if last in ("team", "vol") else (404, NOT_FOUND)

    return answer


@pytest.mark.parametrize("there", [True, False])
def test_an_existing_queue_is_not_dry_run_so_that_no_right_to_create_it_is_needed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, there: bool
) -> None:
    tried: list[str] = []
    with served(tmp_path, volcano(tried, *(["nlp"] if there else []))) as file:
        monkeypatch.setenv("KUBECONFIG", str(file))
        spec, submission = planned("on.job=vcjob", "on.queue=nlp", "on.queue_make={weight: 1}")
        control(spec).check(spec, NO_CLUSTER, submission)
    assert any("/queues/nlp" in path for path in tried) is not there
    assert tried[-1].endswith("/jobs/demo-abcd")


@pytest.mark.parametrize(
    ("word", "said"),
    [
        ([], "on.queue is not set, and context lab has no Volcano queue 'default'.* Name one: .*there are: nlp"),
        (["on.queue=cv"], "on.queue names Volcano queue 'cv', .*There are: nlp; .*'on.queue_make={weight: 1}'$"),
    ],
)
def test_a_default_queue_is_not_reported_as_the_users(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, word: list[str], said: str
) -> None:
    with served(tmp_path, volcano([], "nlp")) as file:
        monkeypatch.setenv("KUBECONFIG", str(file))
        spec, submission = planned("on.job=vcjob", *word)
        with pytest.raises(UserError, match=said):
            control(spec).check(spec, NO_CLUSTER, submission)


@pytest.mark.parametrize("version", ["v1beta1", "v1beta2"])
def test_a_kueue_queue_is_read_in_the_version_that_the_cluster_prefers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: str
) -> None:
    root = f"/apis/kueue.x-k8s.io/{version}"
    queues = f"{root}/namespaces/team/localqueues"
    there: dict[str, Any] = {
        "/apis": {"groups": [{"name": "kueue.x-k8s.io", "preferredVersion": {"version": version}}]},
        "/apis/batch/v1": {"resources": [{"name": "jobs"}]},
        root: {"resources": [{"name": "localqueues", "kind": "LocalQueue", "namespaced": True}]},
        queues: {"metadata": {}, "items": [made("nlp")]},
        f"{queues}/nlp": made("nlp"),
        "/api/v1/namespaces/team": made("team"),
        "/api/v1/namespaces/team/persistentvolumeclaims/vol": CLAIM,
    }

    def answer(method: str, path: str, _: str) -> tuple[int, Any]:
        if method == "PATCH":
            return 200, made(path)
        return (200, there[path]) if path in there else (404, NOT_FOUND)

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
            return 200, made(path)
        if path.endswith("/pods"):
            return 200, {"metadata": {"resourceVersion": "1"}, "items": pods}
        return (200, made(path) | {"status": {"active": 1}}) if path.endswith("/demo-abcd") else (404, NOT_FOUND)

    with served(tmp_path, answer) as file:
        monkeypatch.setenv("KUBECONFIG", str(file))
        spec, submission = planned("on.job=job")
        assert control(spec).delete(planned_place(submission))
    assert deleted[:2] == ["demo-abcd", "pods"]
    assert sorted(deleted[2:]) == ["in-init", "new"]
