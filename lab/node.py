"""A node: containerd, kubelet and kube-proxy on a host of the lab."""

import json
import os
from pathlib import Path
from typing import Any

import yaml

from lab import cgroups, pki
from lab.host import Host, wait_for
from lab.places import (
    ALL_PODS,
    CONTROL,
    DNS_SERVICE,
    IMAGES,
    IN_POD_PACKAGES,
    NODES,
    PACKAGES,
    PODS,
    REGISTRY,
    STATE,
)

SOCKET = "unix:///run/containerd/containerd.sock"
CRI = 'plugins."io.containerd.grpc.v1.cri"'
CONTAINERD = """
version = 2
root = "/var/lib/containerd"
state = "/run/containerd"
disabled_plugins = ["io.containerd.internal.v1.opt", "io.containerd.internal.v1.tracing"]

[{cri}]
sandbox_image = "{pause}"
restrict_oom_score_adj = true
stream_server_address = "127.0.0.1"

[{cri}.cni]
bin_dir = "/usr/lib/cni"
conf_dir = "{folder}/cni"

[{cri}.containerd]
snapshotter = "{snapshotter}"

[{cri}.containerd.runtimes.runc]
runtime_type = "io.containerd.runc.v2"
base_runtime_spec = "{folder}/spec.json"

[{cri}.registry]
config_path = "{folder}/registries"
"""
MIRROR = f"""
server = "http://{REGISTRY}"

[host."http://{REGISTRY}"]
capabilities = ["pull", "resolve"]
"""


def start(host: Host, programs: Path) -> None:
    folder = STATE / host.name
    _containerd(host, folder)
    kubelet = _write(folder / "kubelet.yaml", _kubelet(host.name))
    host.start(
        "kubelet",
        str(programs / "kubelet"),
        f"--config={kubelet}",
        f"--kubeconfig={pki.kubeconfig(host.name)}",
        f"--hostname-override={host.name}",
        f"--node-ip={NODES[host.name]}",
        "--v=1",
    )
    proxy = _write(folder / "proxy.yaml", _proxy(host.name))
    host.start("kube-proxy", str(programs / "kube-proxy"), f"--config={proxy}")


def _containerd(host: Host, folder: Path) -> None:
    (folder / "registries" / "_default").mkdir(parents=True, exist_ok=True)
    (folder / "registries" / "_default" / "hosts.toml").write_text(MIRROR)  # for images of any registry
    (folder / "cni").mkdir(exist_ok=True)
    _write(folder / "cni" / "10-lab.conflist", _cni(PODS[host.name]))
    spec = json.loads(host.run("ctr", "oci", "spec"))
    spec["process"].pop("rlimits", None)
    packages = {"destination": IN_POD_PACKAGES, "type": "bind", "source": str(PACKAGES), "options": ["rbind", "ro"]}
    spec["mounts"].append(packages)
    _write(folder / "spec.json", spec)
    config = folder / "containerd.toml"
    snapshotter = "native" if _is_overlay(folder) else "overlayfs"
    config.write_text(CONTAINERD.format(cri=CRI, pause=IMAGES["pause"], folder=folder, snapshotter=snapshotter))
    host.start("containerd", "containerd", "--config", str(config), "--log-level", "warn", high_priority=False)
    socket = folder / "run" / "containerd" / "containerd.sock"
    wait_for(socket.exists, f"containerd of {host.name}")  # kubelet exits without containerd


def _kubelet(name: str) -> dict[str, Any]:
    resolver = STATE / name / "resolv.conf"
    resolver.write_text(f"nameserver {CONTROL}\n")
    return {
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "address": NODES[name],
        "healthzPort": 0,
        "authentication": {"anonymous": {"enabled": False}, "x509": {"clientCAFile": str(pki.CA)}},
        "authorization": {"mode": "Webhook"},
        "containerRuntimeEndpoint": SOCKET,
        "cgroupDriver": "cgroupfs",
        "cgroupRoot": cgroups.path(name),
        "clusterDNS": [DNS_SERVICE],
        "clusterDomain": "cluster.local",
        "resolvConf": str(resolver),
        "failSwapOn": False,
        "maxPods": 200,
        "registryPullQPS": 0,
        "serializeImagePulls": False,
        "nodeStatusUpdateFrequency": "5s",
        # Low thresholds: the tests need no eviction and no image garbage collection on a nearly full disk.
        "evictionHard": {"memory.available": "100Mi", "nodefs.available": "1Gi", "imagefs.available": "1Gi"},
        "imageGCHighThresholdPercent": 100,
    }


def _proxy(name: str) -> dict[str, Any]:
    return {
        "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
        "kind": "KubeProxyConfiguration",
        "mode": "iptables",
        "clientConnection": {"kubeconfig": str(pki.kubeconfig("proxy"))},
        "hostnameOverride": name,
        "clusterCIDR": ALL_PODS,
        "healthzBindAddress": "127.0.0.1:10256",
        "metricsBindAddress": "127.0.0.1:10249",
        "conntrack": {"maxPerCore": 0, "min": 0, "tcpEstablishedTimeout": "0s", "tcpCloseWaitTimeout": "0s"},
    }


def _cni(pods: str) -> dict[str, Any]:
    bridge = {
        "type": "bridge",
        "bridge": "pods",
        "isGateway": True,
        "hairpinMode": True,
        "ipam": {"type": "host-local", "ranges": [[{"subnet": pods}]], "routes": [{"dst": "0.0.0.0/0"}]},
    }
    return {
        "cniVersion": "0.4.0",
        "name": "lab",
        "plugins": [bridge, {"type": "portmap", "capabilities": {"portMappings": True}}],
    }


def _write(file: Path, content: dict[str, Any]) -> Path:
    file.write_text(json.dumps(content, indent=2) if file.suffix != ".yaml" else yaml.safe_dump(content))
    return file


def _is_overlay(folder: Path) -> bool:
    """Whether the folder is on an overlay file system, which cannot hold another overlay: layers are copied instead."""
    device = os.stat(folder).st_dev
    lines = [line.split() for line in Path("/proc/self/mountinfo").read_text().splitlines()]
    return any(fields[2] == f"{os.major(device)}:{os.minor(device)}" and "overlay" in fields for fields in lines)
