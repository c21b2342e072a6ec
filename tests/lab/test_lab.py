"""The lab is a real cluster, as the other lab tests assume."""

import io
import tarfile
import urllib.request
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest

from lab import fake, image
from lab.places import NODES
from tests.lab.sharing import fake_nodes

HERE = Path(__file__).parent


def test_both_nodes_are_ready(lab: Any) -> None:
    for name in NODES:
        status = lab.kubectl.json("get", "node", name)["status"]
        conditions = {condition["type"]: condition["status"] for condition in status["conditions"]}
        assert conditions["Ready"] == "True"
        assert status["nodeInfo"]["containerRuntimeVersion"].startswith("containerd://")


def test_a_service_has_a_name(namespace: Any, pod: Callable[..., str], phase: Callable[..., str]) -> None:
    service = {"selector": {"app": "x"}, "ports": [{"port": 80}]}
    namespace.kubectl.apply({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "front"}, "spec": service})
    address = namespace.kubectl.json("get", "service", "front")["spec"]["clusterIP"]
    name = f"front.{namespace.name}.svc.cluster.local"
    code = f"from socket import gethostbyname; print(gethostbyname('front'), gethostbyname('{name}'))"
    pod("resolver", "python3", "-c", code)
    assert phase("resolver", "Succeeded").split() == [address, address]


def test_pods_of_both_nodes_talk_and_share_a_volume(
    namespace: Any, pod: Callable[..., str], phase: Callable[..., str]
) -> None:
    first = """
import pathlib, socket
server = socket.create_server(("0.0.0.0", 7000))
pathlib.Path("/stoker/address").write_text(socket.gethostbyname(socket.gethostname()))
peer, _ = server.accept()
print(peer.recv(100).decode())
"""
    second = """
import pathlib, socket, time
while not (file := pathlib.Path("/stoker/address")).exists() or not file.read_text():
    time.sleep(0.05)
socket.create_connection((file.read_text(), 7000)).sendall(b"from the other node")
"""
    pod("first", "python3", "-c", first, node="node-1")
    pod("second", "python3", "-c", second, node="node-2")
    assert phase("first", "Succeeded").strip() == "from the other node"
    hosts = {name: namespace.kubectl.json("get", "pod", name)["spec"]["nodeName"] for name in ("first", "second")}
    assert hosts == {"first": "node-1", "second": "node-2"}


def test_a_pod_gets_torch_from_its_node_and_no_stoker(pod: Callable[..., str], phase: Callable[..., str]) -> None:
    code = "import importlib.util as u, torch; print(torch.ones(3).sum().item(), u.find_spec('stoker'))"
    pod("imports", "python3", "-P", "-c", code)
    assert phase("imports", "Succeeded").split() == ["3.0", "None"]


def test_an_image_that_was_pushed_runs(
    lab: Any, namespace: Any, pod: Callable[..., str], phase: Callable[..., str], tmp_path: Path
) -> None:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as tar:
        tar.add("/bin/busybox", "bin/sh")
        tar.addfile(tarfile.TarInfo("marker"))
    packed.seek(0)
    image.write(tmp_path, packed)
    name = f"{lab.registry}/{namespace.name}/mine:1"
    image.push(tmp_path, name)
    pod("mine", "sh", "-c", "test -e /marker && echo it runs", image=name)
    assert phase("mine", "Succeeded").strip() == "it runs"


@pytest.mark.parametrize("node", NODES)
def test_logs_exec_and_port_forward_reach_a_node(
    node: str,
    namespace: Any,
    pod: Callable[..., str],
    phase: Callable[..., str],
    eventually: Callable[..., None],
    forwarded: Callable[..., AbstractContextManager[int]],
) -> None:
    pod("serves", "python3", "-u", "-m", "http.server", "8000", node=node)
    phase("serves", "Running")
    eventually(lambda: "Serving HTTP" in namespace.kubectl("logs", "serves"), every_s=0.2)
    assert namespace.kubectl("exec", "serves", "--", "python3", "-c", "print(6 * 7)").strip() == "42"
    with forwarded(namespace.kubectl, "serves", 8000) as port:
        url = f"http://127.0.0.1:{port}/etc/debian_version"
        assert urllib.request.urlopen(url, timeout=30).read().startswith(b"12")
    eventually(lambda: "GET /etc/debian_version" in namespace.kubectl("logs", "serves"), every_s=0.2)


@pytest.mark.soak
def test_an_elastic_pytorchjob_trains_over_both_nodes(lab: Any, namespace: Any) -> None:
    namespace.kubectl("create", "configmap", "scripts", f"--from-file={HERE / 'allreduce.py'}")
    namespace.kubectl.apply(elastic_job("tiny", lab.base, "scripts"))
    namespace.kubectl("wait", "--for=condition=Succeeded", "pytorchjob/tiny", "--timeout=600s")
    pods = namespace.kubectl.json("get", "pods")["items"]
    assert {pod["spec"]["nodeName"] for pod in pods} == set(NODES)
    printed = "".join(namespace.kubectl("logs", pod["metadata"]["name"]) for pod in pods)
    assert printed.count("the sum is 3") == 2


def test_fake_nodes_run_pods(namespace: Any) -> None:
    with fake_nodes(3, named="dream"):
        nodes = namespace.kubectl.json("get", "nodes", f"--selector={fake.MARK}=dream")["items"]
        assert [node["metadata"]["name"] for node in nodes] == ["dream-00000", "dream-00001", "dream-00002"]
        spec = {
            "tolerations": [{"key": fake.MARK, "operator": "Exists"}],
            "nodeSelector": {fake.MARK: "dream"},
            "containers": [{"name": "main", "image": "nobody/pulls:this"}],
        }
        namespace.kubectl.apply({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "dream"}, "spec": spec})
        namespace.kubectl("wait", "--for=condition=Ready", "pod/dream", "--timeout=300s")
        assert "kwok" in namespace.kubectl("logs", "dream")


def elastic_job(name: str, image: str, scripts: str) -> dict[str, Any]:
    """A PyTorchJob with one pod on each node. The operator sets the rendezvous of torchrun with PET_* variables."""
    labels = {"training.kubeflow.org/job-name": name}
    other_node = {"labelSelector": {"matchLabels": labels}, "topologyKey": "kubernetes.io/hostname"}
    container = {
        "name": "pytorch",
        "image": image,
        "command": ["python3", "-m", "torch.distributed.run", "/scripts/allreduce.py"],
        "env": [{"name": "OMP_NUM_THREADS", "value": "1"}, {"name": "GLOO_SOCKET_IFNAME", "value": "eth0"}],
        "volumeMounts": [{"name": "scripts", "mountPath": "/scripts"}],
    }
    spec = {
        "containers": [container],
        "volumes": [{"name": "scripts", "configMap": {"name": scripts}}],
        "affinity": {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [other_node]}},
    }
    worker = {"replicas": 2, "restartPolicy": "OnFailure", "template": {"spec": spec}}
    return {
        "apiVersion": "kubeflow.org/v1",
        "kind": "PyTorchJob",
        "metadata": {"name": name},
        "spec": {
            "elasticPolicy": {"rdzvBackend": "c10d", "minReplicas": 2, "maxReplicas": 2, "maxRestarts": 3},
            "nprocPerNode": "1",
            "pytorchReplicaSpecs": {"Worker": worker},
        },
    }
