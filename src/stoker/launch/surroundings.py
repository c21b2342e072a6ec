"""What a worker finds around it: environment, versions, devices, limits, mounts. No secret is in it."""

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

from stoker import __version__
from stoker.launch import machine
from stoker.launch.probe.rdma import libfabric
from stoker.rundir import RunDir
from stoker.spec import contract
from stoker.spec.host import memory

TRAINING = ("torch", "torchvision", "triton", "numpy", "pyarrow", "tokenizers", "safetensors", "transformers", "h5py")
OTHERS = ("datasets", "accelerate", "deepspeed", "flash-attn", "tensorboard", "boto3", "google-cloud-storage", "kr8s")
NEURON = ("torch-xla", "torch-neuronx", "neuronx-cc", "libneuronxla")
CUDA = ("nvidia-nccl-cu12", "nvidia-nccl-cu13", "nvidia-cudnn-cu12", "nvidia-cudnn-cu13")
DEVICES = ("/dev/nvidia[0-9]*", "/dev/neuron*", "/dev/infiniband/*", "/dev/dri/*")
SECRET = re.compile(
    r"(?:^|_)(secrets?|tokens?|passwords?|passwd|pass|pwd|credentials?|auth|private|keys?|cookie|signature)(?:$|_)"
    r"|apikey|password|access_?key",
    re.IGNORECASE,
)
IN_URL = re.compile(r"(?<=://)([^/\s:@]+):([^/\s@]+)@")
BLOT = "***"
SHORTEST = 4  # characters of a secret that is looked for in other values: a shorter one is in every word
PASSING = {
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
class Surroundings:
    rank: int
    pid: int | None
    """None: no worker of that rank runs on this machine, and the environment is nobody's."""
    host: str
    pod: str | None
    node: str | None
    """Of the cluster."""
    command: list[str]
    environment: dict[str, str]
    versions: dict[str, str]
    devices: dict[str, list[str]]
    limits: dict[str, str]
    mounts: list[dict[str, str | int]]


def surroundings(run: RunDir, rank: int) -> Surroundings:
    """As they are here and now: of the pod, where this is one."""
    pid = _worker(run, rank)
    environment = _environment(pid) if pid else {}
    hide = _hidden(environment, run.any_spec().secrets)
    return Surroundings(
        rank=rank,
        pid=pid,
        host=socket.gethostname(),
        pod=os.environ.get(contract.ENV_POD) or environment.get(contract.ENV_POD),
        node=os.environ.get(contract.ENV_K8S_NODE) or environment.get(contract.ENV_K8S_NODE),
        command=[_blotted(word, hide) for word in _words(pid, "cmdline")] if pid else [],
        environment={name: _shown(name, value, hide) for name, value in sorted(environment.items())},
        versions=_versions(),
        devices=_devices(),
        limits=_limits(),
        mounts=_mounts(),
    )


def is_secret(name: str) -> bool:
    """By the looks of it."""
    return SECRET.search(name) is not None


def _worker(run: RunDir, rank: int) -> int | None:
    """The process that has this rank of this run; what it has started has it too, and came later."""
    for pid in sorted(int(path.rpartition("/")[2]) for path in glob("/proc/[0-9]*")):
        found = _environment(pid)
        if found.get(contract.ENV_RUN_DIR) == str(run.path) and found.get("RANK") == str(rank):
            return pid
    return None


def _environment(pid: int) -> dict[str, str]:
    return dict(word.split("=", 1) for word in _words(pid, "environ") if "=" in word)


def _words(pid: int, file: str) -> list[str]:
    try:
        data = Path(f"/proc/{pid}/{file}").read_bytes()
    except OSError:
        return []  # it has ended, or is another user's
    return data.decode(errors="replace").rstrip("\0").split("\0")


def _hidden(environment: Mapping[str, str], named: Iterable[str]) -> list[str]:
    """Values that must not be seen, wherever they stand; longest first: one may hold another."""
    names = {*named, *(name for name in environment if is_secret(name))}
    lines = {line for name in names for line in environment.get(name, "").splitlines()}
    return sorted((line for line in lines if len(line) >= SHORTEST), key=len, reverse=True)


def _shown(name: str, value: str, hide: list[str]) -> str:
    return BLOT if is_secret(name) and value else _blotted(value, hide)


def _blotted(text: str, hide: list[str]) -> str:
    for secret in hide:
        text = text.replace(secret, BLOT)
    return IN_URL.sub(rf"\1:{BLOT}@", text)


def _versions() -> dict[str, str]:
    found = {
        "stoker": __version__,
        "python": platform.python_version(),
        "executable": sys.executable,
        "system": _system(),
        "kernel": platform.release(),
        "machine": platform.machine(),
        "libc": " ".join(platform.libc_ver()),
    }
    found |= {name: version for name in (*TRAINING, *OTHERS, *NEURON, *CUDA) if (version := machine.version(name))}
    if driver := machine.query("driver_version"):
        found["nvidia driver"] = driver[0]
    return found


def _system() -> str:
    try:
        return platform.freedesktop_os_release()["PRETTY_NAME"]
    except (OSError, KeyError):
        return platform.system()


def _devices() -> dict[str, list[str]]:
    found = {
        "gpus": list(machine.gpus()),
        "files": sorted(path for pattern in DEVICES for path in glob(pattern)),
        "rdma": sorted(path.rpartition("/")[2] for path in glob("/sys/class/infiniband/*")),
        "network": sorted(name for _, name in socket.if_nameindex()),
        "fabric": libfabric(),
    }
    return {name: some for name, some in found.items() if some}


def _limits() -> dict[str, str]:
    kinds = {
        "open files": resource.RLIMIT_NOFILE,
        "locked memory": resource.RLIMIT_MEMLOCK,
        "core": resource.RLIMIT_CORE,
    }
    found = {"cores": str(machine.cores()), "memory": _gib(memory())}
    if Path("/dev/shm").is_dir():
        found["/dev/shm"] = _gib(shutil.disk_usage("/dev/shm").total)
    for name, kind in kinds.items():
        soft = resource.getrlimit(kind)[0]
        found[name] = "unlimited" if soft == resource.RLIM_INFINITY else str(soft)
    return found


def _mounts() -> list[dict[str, str | int]]:
    found: list[dict[str, str | int]] = []
    for line in Path("/proc/self/mounts").read_text().splitlines():
        source, place, kind, options = line.split(" ")[:4]
        if kind in PASSING or place.startswith(("/proc", "/sys", "/etc/")):
            continue
        try:
            usage = shutil.disk_usage(place)
        except OSError:
            continue
        mode = options.split(",")[0]
        found.append(
            {"path": place, "kind": kind, "from": source, "mode": mode, "bytes": usage.total, "free": usage.free}
        )
    return found


def _gib(bytes: int) -> str:
    return f"{bytes / 2**30:.1f} GiB"
