"""A run is stopped for scaling only after all checks have passed. What a real cluster does is in tests/lab."""

import json
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import yaml

from stoker.api.run import Run, open_run
from stoker.backends.kubernetes.place import ClusterPlace
from stoker.backends.kubernetes.plan import NO_CLUSTER, plan, planned_place
from stoker.kube import Refused
from stoker.rundir import RunDir, consent
from stoker.spec.errors import UserError
from stoker.spec.load import load

GROUPS = {
    "/apis/kubeflow.org/v1": ["pytorchjobs"],
    "/apis/jobset.x-k8s.io/v1alpha2": ["jobsets"],
    "/apis/batch.volcano.sh/v1alpha1": ["jobs"],
    "/apis/scheduling.volcano.sh/v1beta1": ["queues"],
}
PLURALS = {"job": "jobs", "jobset": "jobsets", "pytorchjob": "pytorchjobs", "vcjob": "jobs"}
IMAGE = "registry.example/runs@sha256:" + "0" * 64
QUOTA = (403, 'pods "x" is forbidden: exceeded quota: small')
CONFLICT = (409, "the object has been modified")
RULE = (403, 'admission webhook "rules.example" denied the request: jobs have a team')
FIXED = (422, 'JobSet "x" is invalid: spec.replicatedJobs: Invalid value: field is immutable')


class Server:
    """An API server of two nodes with two cores each, and of one job."""

    def __init__(self) -> None:
        self.objects: dict[str, Any] = {
            "/version": {"gitVersion": "v1.34.4"},
            "/apis": {"groups": [{"name": path.split("/")[2]} for path in GROUPS]},
            "/api/v1/namespaces/team": {"metadata": {"name": "team"}},
            "/api/v1/namespaces/team/persistentvolumeclaims/vol": {"spec": {"accessModes": ["ReadWriteMany"]}},
            "/apis/scheduling.volcano.sh/v1beta1/queues/default": {"status": {"state": "Open"}},
        }
        self.objects |= {path: {"resources": [{"name": name} for name in names]} for path, names in GROUPS.items()}
        self.objects["/api/v1/nodes"] = listed(*(node(name) for name in "ab"))
        for kind in ("persistentvolumeclaims", "pods"):
            self.objects[f"/api/v1/namespaces/team/{kind}"] = listed()
        self.patch: Callable[[Any], tuple[int, str] | None] = lambda _: None
        """Why a patch is refused."""
        self.patches: list[Any] = []
        self.deleted: list[str] = []

    def answer(self, method: str, path: str, body: Any) -> tuple[int, Any]:
        if method == "PATCH":
            self.patches.append(body)
            if refused := self.patch(body):
                return refused[0], {"message": refused[1], "details": {"name": "x"}}
            return 200, body
        if method == "DELETE":
            self.deleted.append(path)
        if method == "GET" and path in self.objects:
            return 200, self.objects[path]
        return 404, {"message": "not found", "details": {"name": "x"}}


def listed(*items: Any) -> Any:
    return {"metadata": {}, "items": list(items)}


def node(name: str) -> Any:
    status = {"conditions": [{"type": "Ready", "status": "True"}], "allocatable": {"cpu": "2", "memory": "8Gi"}}
    return {"metadata": {"name": name, "labels": {}}, "spec": {}, "status": status}


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    server = Server()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True

        def answer(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            code, value = server.answer(self.command, urlsplit(self.path).path, json.loads(body) if body else None)
            reply = json.dumps(value).encode()
            self.send_response(code)
            self.send_header("Content-Length", str(len(reply)))
            self.end_headers()
            self.wfile.write(reply)

        do_GET = do_POST = do_PATCH = do_DELETE = answer

        def log_message(self, *_: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as http:
        threading.Thread(target=http.serve_forever, args=(0.02,), daemon=True).start()
        values = {
            "current-context": "lab",
            "clusters": [{"name": "c", "cluster": {"server": f"http://127.0.0.1:{http.server_port}"}}],
            "users": [{"name": "u", "user": {}}],
            "contexts": [{"name": "lab", "context": {"cluster": "c", "user": "u", "namespace": "team"}}],
        }
        (tmp_path / "kubeconfig").write_text(yaml.safe_dump(values))
        monkeypatch.setenv("KUBECONFIG", str(tmp_path / "kubeconfig"))
        yield server
        http.shutdown()


@pytest.fixture
def launched(server: Server, tmp_path: Path) -> Callable[..., Run]:
    """A run of that kind of job, which waits for its pods."""

    def call(job: str, *overrides: str) -> Run:
        settings = ["on.kind=kubernetes", f"on.job={job}", "on.image=http://img:1", "on.registry=registry.example/runs"]
        settings += ["on.volume=vol", "on.namespace=team", "on.cpu=1"]
        spec = load(None, ["data=x", "until.steps=1", *settings, *overrides]).spec
        run = RunDir(tmp_path / "runs" / "tale-abcd")
        run.create(spec, None)
        submission = plan(spec, NO_CLUSTER, run.path)
        job_object = submission.objects[-1]
        server.objects[f"/apis/{job_object['apiVersion']}/namespaces/team/{PLURALS[job]}/{run.name}"] = job_object
        place = ClusterPlace(**(as_values(planned_place(submission, context="lab")) | {"image": IMAGE}))
        place.write(run)
        consent.record_image(run, place.image)
        return open_run(run.path)

    return call


def as_values(place: ClusterPlace) -> dict[str, Any]:
    return {name: getattr(place, name) for name in ClusterPlace.__dataclass_fields__}


def refused(run: Run, nodes: str, *, match: str, error: type[UserError] = UserError) -> list[str]:
    """The messages so far. The run has its old spec."""
    before, messages = (run.path / "spec.yaml").read_bytes(), []
    with pytest.raises(error, match=match):
        run.scale(nodes, message=messages.append, committed=lambda: pytest.fail("a change was begun"))
    assert (run.path / "spec.yaml").read_bytes() == before
    return messages


def test_an_autoscaled_run_keeps_a_range_of_nodes(launched: Callable[..., Run], server: Server) -> None:
    run = launched("pytorchjob", "on.nodes=1..4", "on.autoscale={cpu: 80}")
    refused(run, "2", match=r"cannot have on.nodes=2: autoscale is for a pytorchjob with a range of nodes\. Set on.job")
    assert not server.patches


@pytest.mark.parametrize(("code", "message"), [QUOTA, CONFLICT, RULE, (500, "etcdserver: request timed out")])
def test_a_refusal_that_may_pass_does_not_end_a_run(
    code: int, message: str, launched: Callable[..., Run], server: Server
) -> None:
    server.patch = lambda _: (code, message)
    refused(launched("job"), "2", match=message.split(": ")[0], error=Refused)
    assert len(server.patches) == 1
    assert not server.deleted


@pytest.mark.parametrize("job", ["vcjob", "jobset"])
def test_a_job_whose_successor_is_refused_is_not_stopped(
    job: str, launched: Callable[..., Run], server: Server
) -> None:
    server.patch = lambda body: FIXED if "apiVersion" not in body else QUOTA
    refused(launched(job), "2", match="exceeded quota", error=Refused)
    assert not server.deleted


def test_more_nodes_than_the_cluster_has_do_not_stop_a_run(launched: Callable[..., Run], server: Server) -> None:
    run = launched("vcjob")
    messages = refused(
        run, "5", match="the cluster has room for 4 of the 5 nodes that it needs, and the run would stop"
    )
    assert messages == ["warning: the cluster has room for 4 of its 5 nodes now: the other pods wait"]
    assert not server.patches


class Enough(Exception):
    """The point where the test ends."""


def test_warnings_are_shown_and_the_next_job_is_checked_before_the_run_stops(
    launched: Callable[..., Run], server: Server, tmp_path: Path
) -> None:
    """With its present image: this machine has neither its code nor its data."""
    run, messages = launched("vcjob"), list[str]()

    def committed() -> None:
        messages.append("committed")
        raise Enough

    with pytest.raises(Enough):
        run.scale("3..5", message=messages.append, committed=committed)
    warning, ends, last = messages
    assert warning.startswith("warning: the cluster has room for 4 of its 5 nodes")
    assert "cannot be resized while it runs" in ends
    assert last == "committed"
    [tried] = server.patches
    [container] = tried["spec"]["tasks"][0]["template"]["spec"]["containers"]
    assert (container["image"], tried["spec"]["tasks"][0]["replicas"]) == (IMAGE, 5)
    assert not server.deleted
    assert not (tmp_path / "x").exists()


def test_a_run_that_finishes_meanwhile_is_not_resumed(launched: Callable[..., Run], server: Server) -> None:
    run = launched("vcjob")
    [path] = [path for path in server.objects if path.endswith(run.name)]

    def committed() -> None:
        server.objects[path] = server.objects[path] | {"status": {"state": {"phase": "Completed"}}}

    with pytest.raises(UserError, match=r"is not running \(done\)\. Start a new run like it: .* on.nodes=2 --new"):
        run.scale(2, committed=committed)
    assert run.spec.on.nodes == "1"
    assert len(server.patches) == 1, "nothing was created"
    assert not server.deleted


def test_the_remedy_for_a_run_that_is_not_running_names_a_command_that_finds_it(
    launched: Callable[..., Run], server: Server, tmp_path: Path
) -> None:
    run = launched("job")
    del server.objects["/apis/batch/v1/namespaces/team/jobs/tale-abcd"]
    refused(run, "2", match=f"stoker launch {tmp_path}/runs/tale-abcd on.nodes=2$")
