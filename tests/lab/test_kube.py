"""The Kubernetes client and `check kube` on the real cluster."""

import io
import json
import re
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from lab.kubectl import Kubectl
from stoker.backends.kubernetes.jobs import job_kind, kind_name
from stoker.backends.kubernetes.place import ClusterPlace
from stoker.backends.kubernetes.volume.reader import READER, reader_pod
from stoker.cli.main import main
from stoker.kube import Cluster, Forbidden, Refused, connect
from stoker.spec.run import ScriptSpec
from tests.waiting import PATIENCE_S, until

GOLDEN = sorted((Path(__file__).parents[1] / "golden").glob("*.yaml"))


@pytest.fixture
def cluster(lab, namespace, monkeypatch: pytest.MonkeyPatch) -> Cluster:
    monkeypatch.setenv("KUBECONFIG", str(lab.kubeconfig))
    return connect(namespace=namespace.name)


def config_map(name: str, **data: str) -> dict[str, object]:
    metadata = {"name": name, "labels": {"test": "yes"}}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": data}


def restricted(lab, namespace, tmp_path: Path) -> Path:
    """A kubeconfig without any permissions."""
    kubectl: Kubectl = namespace.kubectl
    kubectl("create", "serviceaccount", "nobody")
    token = kubectl("create", "token", "nobody").strip()
    values = yaml.safe_load(lab.kubeconfig.read_text())
    values["users"][0]["user"] = {"token": token}
    file = tmp_path / "restricted"
    file.write_text(yaml.safe_dump(values))
    return file


def dry_run(kubectl: Kubectl, objects: list[dict]) -> None:
    output = kubectl("apply", "--dry-run=server", "--filename=-", input=yaml.safe_dump_all(objects))
    assert output.count("(server dry run)") == len(objects)


def test_the_server_accepts_every_reviewed_manifest(namespace, runtime: str) -> None:
    train_jobs = []
    for file in GOLDEN:
        text = file.read_text().replace("namespace: team", f"namespace: {namespace.name}")
        objects = list(yaml.safe_load_all(text.replace("name: torch-distributed", f"name: {runtime}")))
        dry_run(namespace.kubectl, job_kind(kind_name(objects[-1])).dry_run_objects(objects))
        if runtimes := [item for item in objects if item["kind"] == "TrainingRuntime"]:
            namespace.kubectl.apply(*runtimes)  # without it a TrainJob is refused
            train_jobs.append(objects[-1])
    assert train_jobs
    deadline = time.monotonic() + PATIENCE_S
    while True:
        try:
            return dry_run(namespace.kubectl, train_jobs)
        except RuntimeError as e:  # Trainer learns of a runtime a moment later
            if "must be created before the TrainJob" not in str(e) or time.monotonic() > deadline:
                raise
        time.sleep(0.2)


def test_objects_are_created_changed_listed_and_deleted(cluster: Cluster) -> None:
    for number in range(5):
        cluster.apply(config_map(f"map-{number}", a="1"))
    changed = cluster.apply(config_map("map-0", a="2"))
    assert changed["data"] == {"a": "2"}
    assert cluster.get("ConfigMap", "map-0")["data"] == {"a": "2"}
    assert cluster.get("ConfigMap", "none") is None
    assert len(list(cluster.list("ConfigMap", labels={"test": "yes"}))) == 5
    assert len(list(cluster.list("ConfigMap", labels={"test": None}, limit=2))) == 2
    cluster.apply(config_map("dry", a="1"), dry_run=True)
    assert cluster.get("ConfigMap", "dry") is None
    assert cluster.delete("ConfigMap", "map-0")
    assert not cluster.delete("ConfigMap", "map-0")


def test_a_watch_yields_existing_objects_and_changes(cluster: Cluster) -> None:
    cluster.apply(config_map("first"))
    seen = []
    for kind, item in cluster.watch("ConfigMap", labels={"test": "yes"}, seconds=30):
        seen.append((kind, item["metadata"]["name"]))
        if len(seen) == 1:
            cluster.apply(config_map("second"))
            cluster.delete("ConfigMap", "first")
        if len(seen) == 3:
            break
    assert seen == [("ADDED", "first"), ("ADDED", "second"), ("DELETED", "first")]


def test_unknown_fields_and_kinds_are_refused_with_the_servers_reason(cluster: Cluster) -> None:
    with pytest.raises(Refused, match=r"field not declared in schema|unknown field"):
        cluster.apply(config_map("odd") | {"dates": {}})
    with pytest.raises(Refused, match=r"knows no kind Wonder"):
        cluster.apply({"apiVersion": "example.com/v1", "kind": "Wonder", "metadata": {"name": "x"}})
    assert cluster.serves("PyTorchJob")
    assert not cluster.serves("NodePool")


def test_commands_and_logs_of_a_pod(cluster: Cluster, pod: Callable[..., str], phase: Callable[..., str]) -> None:
    name = pod("worker", "python3", "-u", "-c", "import time; print('hello'); time.sleep(3600)")
    phase(name, "Running")
    assert next(cluster.logs(name, follow=True)) == "hello"
    out, err = io.BytesIO(), io.BytesIO()
    assert cluster.exec(name, ["sh", "-c", "echo out; echo err >&2; exit 7"], stdout=out, stderr=err) == 7
    assert (out.getvalue(), err.getvalue()) == (b"out\n", b"err\n")
    block = bytes(range(256)) * 40_000  # 10 MB
    out = io.BytesIO()
    assert cluster.exec(name, ["cat"], stdin=io.BytesIO(block), stdout=out) == 0
    assert out.getvalue() == block
    with pytest.raises(Refused, match=r"executable file not found|no such file"):
        cluster.exec(name, ["no-such-program"], stdout=io.BytesIO())
    with pytest.raises(Refused, match="gone"):
        cluster.exec("gone", ["true"], stdout=io.BytesIO())


def test_a_missing_permission_is_named_with_the_role_that_grants_it(
    lab, namespace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KUBECONFIG", str(restricted(lab, namespace, tmp_path)))
    nobody = connect(namespace=namespace.name)
    assert not nobody.allowed("list", "Pod")
    with pytest.raises(Forbidden, match=f"you may not list pods in namespace {namespace.name}") as refused:
        list(nobody.list("Pod"))
    namespace.kubectl("apply", "--filename=-", input=refused.value.remedy.partition("\n")[2])
    until(lambda: nobody.allowed("list", "Pod"), every_s=0.2)
    assert list(nobody.list("Pod")) == []


def test_a_reader_pod_gets_the_security_context_of_the_training_pods(lab, cluster: Cluster, namespace) -> None:
    namespace.kubectl("label", "namespace", namespace.name, "pod-security.kubernetes.io/enforce=restricted")
    strict = {"runAsNonRoot": True, "capabilities": {"drop": ["ALL"]}, "seccompProfile": {"type": "RuntimeDefault"}}
    patch = {"spec": {"containers": [{"name": "pytorch", "securityContext": strict}]}}
    ref = ClusterPlace(
        kind="kubernetes",
        context=None,
        namespace=namespace.name,
        job="job",
        run="demo",
        volume=namespace.volume,
        image=lab.base,
    )

    def reader(pod: dict[str, object]) -> dict[str, object]:
        values = {"name": "demo", "script": "train.py", "on": {"kind": "kubernetes", "pod": pod}}
        return reader_pod(ref, ScriptSpec.model_validate(values), name="demo-reader", kind=READER)

    cluster.apply(reader(patch), dry_run=True)
    with pytest.raises(Refused, match=r"violates PodSecurity .*runAsNonRoot.* with on\.pod") as refused:
        cluster.apply(reader({}), dry_run=True)
    assert not isinstance(refused.value, Forbidden)


def test_check_kube_lists_what_the_cluster_provides(lab, namespace, monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    monkeypatch.setenv("KUBECONFIG", str(lab.kubeconfig))
    assert main(["check", "kube", "--namespace", namespace.name]) == 0
    out = capsys.readouterr().out
    for name in (
        "cluster",
        "namespace",
        "rights",
        "nodes",
        "volumes",
        "pytorchjob",
        "jobset",
        "trainjob",
        "vcjob",
        "DNS",
    ):
        assert re.search(rf"ok +{name} ", out), out
    assert out.endswith("A run can be trained there.\n")
    assert main(["check", "kube", "--namespace", "nowhere", "--json"]) == 2
    missing = [check for check in json.loads(capsys.readouterr().out) if check["needed"] and not check["ok"]]
    assert "create namespace nowhere" in missing[0]["remedy"]


def test_check_kube_prints_the_role_that_is_needed(lab, namespace, tmp_path: Path, monkeypatch, capsys) -> None:
    monkeypatch.setenv("KUBECONFIG", str(restricted(lab, namespace, tmp_path)))
    assert main(["check", "kube", "--namespace", namespace.name, "--json"]) == 2
    checks = {check["name"]: check for check in json.loads(capsys.readouterr().out)}
    assert "create jobs" in checks["rights"]["detail"]
    role = checks["rights"]["remedy"].partition("\n")[2]
    namespace.kubectl("apply", "--filename=-", input=role)  # with its RoleBinding
    assert "portforward" not in role
    assert "pytorchjobs" not in role
    until(lambda: connect(namespace=namespace.name).allowed("list", "Pod"), every_s=0.2)
    assert main(["check", "kube", "--namespace", namespace.name]) == 0
    out = capsys.readouterr().out
    assert "you may not list them" in out
    assert re.search(r"better +pytorchjob rights .*create pytorchjobs.*; on\.job=job needs none of it", out)
    assert re.search(r"better +vcjob rights .*create jobs", out)  # jobs of Volcano: those of Kubernetes are allowed


def test_no_key_of_the_kubeconfig_is_left_in_the_temporary_folder(lab, tmp_path: Path) -> None:
    code = "from stoker.kube import connect; connect(); connect()"
    environment = {"KUBECONFIG": str(lab.kubeconfig), "TMPDIR": str(tmp_path), "PATH": "/usr/bin"}
    subprocess.run([sys.executable, "-c", code], env=environment, check=True)
    assert list(tmp_path.iterdir()) == []
