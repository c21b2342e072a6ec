"""The servers of the control host: etcd, API server, controller manager, scheduler, DNS and registry."""

import http.client
import socket
import ssl
from pathlib import Path

import yaml

from lab import pki
from lab.host import Host, wait_for
from lab.places import API_PORT, CONTROL, REGISTRY, REGISTRY_PORT, SERVICES, STATE

ETCD = "http://127.0.0.1:2379"
FOLDER = STATE / "control"
COREFILE = """
. {{
    bind {address}
    errors
    cache 5
    kubernetes cluster.local {reverse} {{
        kubeconfig {kubeconfig}
        pods insecure
        ttl 5
    }}
}}
"""


def start(host: Host, programs: Path) -> None:
    FOLDER.mkdir(parents=True, exist_ok=True)
    host.start(
        "etcd",
        str(programs / "etcd"),
        f"--data-dir={FOLDER / 'etcd'}",
        f"--listen-client-urls={ETCD}",
        f"--advertise-client-urls={ETCD}",
        "--listen-peer-urls=http://127.0.0.1:2380",
        "--unsafe-no-fsync",  # no data has to survive a power cut, and benchmarks share the disk
        "--quota-backend-bytes=4294967296",
        "--log-level=warn",
    )
    start_registry(host)
    host.start("kube-apiserver", str(programs / "kube-apiserver"), *_api_flags())
    wait_for(ready, "the API server")  # the others exit if their roles do not exist
    host.start("kube-controller-manager", str(programs / "kube-controller-manager"), *_controller_flags())
    host.start(
        "kube-scheduler",
        str(programs / "kube-scheduler"),
        f"--config={_scheduler_config()}",
        f"--authentication-kubeconfig={pki.kubeconfig('scheduler')}",
        f"--authorization-kubeconfig={pki.kubeconfig('scheduler')}",
        "--bind-address=127.0.0.1",
    )
    start_dns(host, programs)
    wait_for(_registry_responds, "the registry")


def _scheduler_config() -> Path:
    """Score all nodes for each pod, so that a pod that prefers real nodes finds them among the fake ones."""
    config = {
        "apiVersion": "kubescheduler.config.k8s.io/v1",
        "kind": "KubeSchedulerConfiguration",
        "clientConnection": {"kubeconfig": str(pki.kubeconfig("scheduler"))},
        "leaderElection": {"leaderElect": False},
        "percentageOfNodesToScore": 100,
    }
    file = FOLDER / "scheduler.yaml"
    file.write_text(yaml.safe_dump(config))
    return file


def start_registry(host: Host) -> None:
    config = {
        "version": "0.1",
        "log": {"level": "warn", "accesslog": {"disabled": True}},
        "storage": {"filesystem": {"rootdirectory": str(FOLDER / "registry")}, "delete": {"enabled": True}},
        "http": {"addr": REGISTRY, "secret": "one process only"},
    }
    file = FOLDER / "registry.yaml"
    file.write_text(yaml.safe_dump(config))
    host.start("registry", "docker-registry", "serve", str(file))


def start_dns(host: Host, programs: Path) -> None:
    file = FOLDER / "Corefile"
    file.write_text(
        COREFILE.format(address=CONTROL, reverse="10.in-addr.arpa", kubeconfig=f"{pki.kubeconfig('lab')} lab")
    )
    host.start("dns", str(programs / "dns"), "-conf", str(file))


def connection(timeout_s: float) -> http.client.HTTPSConnection:
    """A connection to the API server, with all permissions."""
    context = ssl.create_default_context(cafile=str(pki.CA))
    context.load_cert_chain(pki.certificate("lab"), pki.key("lab"))
    return http.client.HTTPSConnection(CONTROL, API_PORT, timeout=timeout_s, context=context)


def ready(timeout_s: float = 2) -> bool:
    """Whether the API server responds."""
    try:
        server = connection(timeout_s)
    except OSError:  # no certificates yet
        return False
    try:
        server.request("GET", "/readyz")
        return server.getresponse().status == 200
    except OSError:
        return False
    finally:
        server.close()


def _registry_responds() -> bool:
    try:
        socket.create_connection((CONTROL, REGISTRY_PORT), timeout=2).close()
    except OSError:
        return False
    return True


def _api_flags() -> list[str]:
    certificate, key = pki.certificate("apiserver"), pki.key("apiserver")
    return [
        f"--etcd-servers={ETCD}",
        f"--bind-address={CONTROL}",
        f"--advertise-address={CONTROL}",
        f"--secure-port={API_PORT}",
        f"--service-cluster-ip-range={SERVICES}",
        f"--client-ca-file={pki.CA}",
        f"--tls-cert-file={certificate}",
        f"--tls-private-key-file={key}",
        f"--kubelet-client-certificate={certificate}",
        f"--kubelet-client-key={key}",
        "--kubelet-preferred-address-types=InternalIP",
        f"--service-account-key-file={pki.ACCOUNTS}",
        f"--service-account-signing-key-file={pki.ACCOUNTS}",
        "--service-account-issuer=https://kubernetes.default.svc.cluster.local",
        "--authorization-mode=Node,RBAC",
        "--enable-admission-plugins=NodeRestriction",
        "--allow-privileged=true",
        "--enable-aggregator-routing=true",  # connect to webhook pods directly: this host has no kube-proxy
        "--profiling=false",
    ]


def _controller_flags() -> list[str]:
    return [
        f"--kubeconfig={pki.kubeconfig('controllers')}",
        f"--authentication-kubeconfig={pki.kubeconfig('controllers')}",
        f"--authorization-kubeconfig={pki.kubeconfig('controllers')}",
        "--bind-address=127.0.0.1",
        "--leader-elect=false",
        "--use-service-account-credentials=true",
        f"--service-account-private-key-file={pki.ACCOUNTS}",
        f"--root-ca-file={pki.CA}",
        f"--cluster-signing-cert-file={pki.CA}",
        f"--cluster-signing-key-file={pki.FOLDER / 'ca.key'}",
        "--enable-hostpath-provisioner=true",  # creates volumes in places.PROVISIONED, which all hosts share
    ]
