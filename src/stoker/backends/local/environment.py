"""The environment of a worker: variables, versions, devices, limits, mounts. Secrets are hidden."""

import os
import platform
import re
import resource
import shutil
import socket
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from glob import glob
from pathlib import Path

import psutil

from stoker import __version__
from stoker.backends.local import machine, processes
from stoker.backends.local.rdma import libfabric
from stoker.rundir import RunDir
from stoker.spec import contract
from stoker.spec.host import memory

TRAINING = ("torch", "torchvision", "triton", "numpy", "pyarrow", "tokenizers", "safetensors", "transformers", "h5py")
OTHERS = ("datasets", "accelerate", "deepspeed", "flash-attn", "tensorboard", "boto3", "google-cloud-storage", "httpx2")
NEURON = ("torch-xla", "torch-neuronx", "neuronx-cc", "libneuronxla")
CUDA = ("nvidia-nccl-cu12", "nvidia-nccl-cu13", "nvidia-cudnn-cu12", "nvidia-cudnn-cu13")
DEVICES = ("/dev/nvidia[0-9]*", "/dev/neuron*", "/dev/infiniband/*", "/dev/dri/*")
SECRET = re.compile(
    r"(?:^|_)(secrets?|tokens?|passwords?|passwd|pass|pwd|credentials?|auth|private|keys?|cookie|signature)(?:$|_)"
    r"|apikey|password|access_?key",
    re.IGNORECASE,
)
IN_URL = re.compile(r"(?<=://)([^/\s:@]+):([^/\s@]+)@")
HIDDEN = "***"
MIN_SECRET = 4  # characters: shorter secrets would match by accident in other values
VIRTUAL_FILE_SYSTEMS = {
    "proc",
    "sysfs",
    "cgroup",
    "cgroup2",
    "devpts",
    "mqueue",
    "securityfs",
    "debugfs",
    "tracefs",
    "bpf",
    "devtmpfs",
}


@dataclass(frozen=True, kw_only=True, slots=True)
class WorkerEnvironment:
    rank: int
    pid: int | None
    """None: no worker of that rank runs on this machine, and `environment` is empty."""
    host: str
    pod: str | None
    node: str | None
    """The Kubernetes node."""
    command: list[str]
    environment: dict[str, str]
    versions: dict[str, str]
    devices: dict[str, list[str]]
    limits: dict[str, str]
    mounts: list[dict[str, str | int]]


def worker_environment(run: RunDir, rank: int) -> WorkerEnvironment:
    """Of this machine, or of the pod that this process runs in."""
    pid = _worker(run, rank)
    environment = processes.environment(pid) if pid else {}
    hide = _hidden(environment, run.any_spec().secrets)
    return WorkerEnvironment(
        rank=rank,
        pid=pid,
        host=socket.gethostname(),
        pod=os.environ.get(contract.ENV_POD) or environment.get(contract.ENV_POD),
        node=os.environ.get(contract.ENV_K8S_NODE) or environment.get(contract.ENV_K8S_NODE),
        command=[_redacted(argument, hide) for argument in processes.command(pid)] if pid else [],
        environment={name: _shown(name, value, hide) for name, value in sorted(environment.items())},
        versions=_versions(),
        devices=_devices(),
        limits=_limits(),
        mounts=_mounts(),
    )


def is_secret(name: str) -> bool:
    """Judged by its name."""
    return SECRET.search(name) is not None


def _worker(run: RunDir, rank: int) -> int | None:
    """The process with this rank of this run. Its children inherit the rank and have higher ids."""
    for pid in sorted(psutil.pids()):
        environment = processes.environment(pid)
        if environment.get(contract.ENV_RUN_DIR) == str(run.path) and environment.get("RANK") == str(rank):
            return pid
    return None


def _hidden(environment: Mapping[str, str], declared: Iterable[str]) -> list[str]:
    """Values that must not be shown, wherever they occur; the longest first, because one may contain another."""
    names = {*declared, *(name for name in environment if is_secret(name))}
    lines = {line for name in names for line in environment.get(name, "").splitlines()}
    return sorted((line for line in lines if len(line) >= MIN_SECRET), key=len, reverse=True)


def _shown(name: str, value: str, hide: list[str]) -> str:
    return HIDDEN if is_secret(name) and value else _redacted(value, hide)


def _redacted(text: str, hide: list[str]) -> str:
    for secret in hide:
        text = text.replace(secret, HIDDEN)
    return IN_URL.sub(rf"\1:{HIDDEN}@", text)


def _versions() -> dict[str, str]:
    versions = {
        "stoker": __version__,
        "python": platform.python_version(),
        "executable": sys.executable,
        "system": _system(),
        "kernel": platform.release(),
        "machine": platform.machine(),
        "libc": " ".join(platform.libc_ver()),
    }
    packages = (*TRAINING, *OTHERS, *NEURON, *CUDA)
    versions |= {name: version for name in packages if (version := machine.version(name))}
    if driver := machine.query("driver_version"):
        versions["nvidia driver"] = driver[0]
    return versions


def _system() -> str:
    try:
        return platform.freedesktop_os_release()["PRETTY_NAME"]
    except (OSError, KeyError):
        return platform.system()


def _devices() -> dict[str, list[str]]:
    devices = {
        "gpus": list(machine.gpus()),
        "files": sorted(path for pattern in DEVICES for path in glob(pattern)),
        "rdma": sorted(path.rpartition("/")[2] for path in glob("/sys/class/infiniband/*")),
        "network": sorted(name for _, name in socket.if_nameindex()),
        "fabric": libfabric(),
    }
    return {name: paths for name, paths in devices.items() if paths}


def _limits() -> dict[str, str]:
    kinds = {
        "open files": resource.RLIMIT_NOFILE,
        "locked memory": resource.RLIMIT_MEMLOCK,
        "core": resource.RLIMIT_CORE,
    }
    limits = {"cores": str(machine.cores()), "memory": _gib(memory())}
    if Path("/dev/shm").is_dir():
        limits["/dev/shm"] = _gib(shutil.disk_usage("/dev/shm").total)
    for name, kind in kinds.items():
        soft = resource.getrlimit(kind)[0]
        limits[name] = "unlimited" if soft == resource.RLIM_INFINITY else str(soft)
    return limits


def _mounts() -> list[dict[str, str | int]]:
    mounts: list[dict[str, str | int]] = []
    for mount in psutil.disk_partitions(all=True):
        path, kind = mount.mountpoint, mount.fstype
        if kind in VIRTUAL_FILE_SYSTEMS or path.startswith(("/proc", "/sys", "/etc/")):
            continue
        try:
            usage = shutil.disk_usage(path)
        except OSError:
            continue
        mode = mount.opts.split(",")[0]
        mounts.append(
            {"path": path, "kind": kind, "from": mount.device, "mode": mode, "bytes": usage.total, "free": usage.free}
        )
    return mounts


def _gib(bytes: int) -> str:
    return f"{bytes / 2**30:.1f} GiB"
