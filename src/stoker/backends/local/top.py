"""What the workers of a run use of this machine or pod: CPU, memory, threads, GPUs or Neuron cores."""

import os
import re
import shlex
import socket
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil

from stoker.backends.local import neuron, nvidia, processes
from stoker.backends.local.accelerator import Accelerator
from stoker.rundir import RunDir
from stoker.spec import contract
from stoker.spec.errors import UserError

GPU_DEVICE = re.compile(r"/dev/nvidia\d+")
FIELDS = ["pid", "ppid", "cpu_times", "memory_info", "num_threads"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Use:
    """What one worker uses, including all processes that it has started."""

    rank: int
    pid: int
    cpu: float
    """Percent of one core, since the last reading."""
    memory: int
    """Resident bytes."""
    threads: int
    gpu: Accelerator | None
    """The GPU or the Neuron cores that it computes on, if any."""
    pod: str = ""
    machine: str = ""
    """The Kubernetes node that its pod runs on."""


@dataclass(frozen=True, kw_only=True, slots=True)
class _Process:
    pid: int
    parent: int
    cpu_seconds: float
    memory: int
    threads: int


@dataclass(frozen=True, kw_only=True, slots=True)
class _Worker:
    environment: dict[str, str]
    pid: int
    tree: list[_Process]
    """The worker and all its descendants."""

    @property
    def cpu_seconds(self) -> float:
        return sum(process.cpu_seconds for process in self.tree)


class Top:
    """Reads what the workers of a run on this machine use, again and again."""

    def __init__(self, run: RunDir) -> None:
        self._run = run
        self._read_at = time.monotonic()
        self._cpu_seconds = {worker.pid: worker.cpu_seconds for worker in self._workers()}

    def read(self) -> list[Use]:
        """Sorted by rank; the CPU use of a worker that started after the last reading is 0."""
        workers, now = list(self._workers()), time.monotonic()
        elapsed = max(1e-3, now - self._read_at)
        gpus, cores = nvidia.read_gpus(), neuron.read_cores()
        uses = []
        for worker in workers:
            used = worker.cpu_seconds - self._cpu_seconds.get(worker.pid, worker.cpu_seconds)
            uses.append(
                Use(
                    rank=int(worker.environment["RANK"]),
                    pid=worker.pid,
                    cpu=max(0.0, 100 * used / elapsed),  # the time of a child that has ended is gone
                    memory=sum(process.memory for process in worker.tree),
                    threads=sum(process.threads for process in worker.tree),
                    gpu=gpu_of(worker.pid, worker.environment, gpus)
                    or neuron.of_any(cores, {process.pid for process in worker.tree}),
                )
            )
        self._read_at, self._cpu_seconds = now, {worker.pid: worker.cpu_seconds for worker in workers}
        return sorted(uses, key=lambda use: use.rank)

    def _workers(self) -> Iterator[_Worker]:
        children: dict[int, list[_Process]] = {}
        for process in _processes():
            children.setdefault(process.parent, []).append(process)
        for root in self._roots(children):
            environment = processes.environment(root.pid)
            if environment.get("RANK", "").isdigit():
                yield _Worker(environment=environment, pid=root.pid, tree=_tree(root, children))

    def _roots(self, children: dict[int, list[_Process]]) -> list[_Process]:
        """The supervisor's children; in a pod, every process with a rank of the run, since the supervisor may be in
        another container."""
        if os.environ.get(contract.ENV_POD):
            ranked = {
                process.pid: process
                for siblings in children.values()
                for process in siblings
                if self._has_rank(process.pid)
            }
            return [process for process in ranked.values() if process.parent not in ranked]
        holder = self._run.holder()
        if holder is None or not holder["pid"]:  # the lock is taken, but its holder has not written its name yet
            return []
        if holder["host"] != socket.gethostname():
            raise UserError(
                f"run '{self._run.name}' runs on {holder['host']}, not on this machine",
                remedy=f"Run there: stoker top {shlex.quote(str(self._run.path))}",
            )
        return children.get(holder["pid"], [])

    def _has_rank(self, pid: int) -> bool:
        environment = processes.environment(pid)
        return "RANK" in environment and environment.get(contract.ENV_RUN_DIR) == str(self._run.path)


def gpu_of(pid: int, environment: dict[str, str], gpus: list[Accelerator]) -> Accelerator | None:
    """A worker computes on the visible GPU of its local rank."""
    if not gpus or not any(map(GPU_DEVICE.fullmatch, _open_devices(pid))):
        return None
    local = int(environment.get("LOCAL_RANK", environment["RANK"]))
    chosen = environment.get("CUDA_VISIBLE_DEVICES")
    visible = [gpu.index for gpu in gpus] if chosen is None else [name.strip() for name in chosen.split(",")]
    if local >= len(visible):
        return None
    return next((gpu for gpu in gpus if gpu.index == visible[local] or gpu.uuid.startswith(visible[local])), None)


def _tree(root: _Process, children: dict[int, list[_Process]]) -> list[_Process]:
    return [root, *(process for child in children.get(root.pid, []) for process in _tree(child, children))]


def _processes() -> Iterator[_Process]:
    for process in psutil.process_iter(FIELDS):
        times, memory = process.info["cpu_times"], process.info["memory_info"]
        if times is not None and memory is not None:  # None: it belongs to another user, on macOS
            yield _Process(
                pid=process.info["pid"],
                parent=process.info["ppid"] or 0,
                cpu_seconds=times.user + times.system,
                memory=memory.rss,
                threads=process.info["num_threads"] or 0,
            )


def _open_devices(pid: int) -> Iterator[str]:
    """psutil lists regular files only, and NVML knows a container's processes by other ids than the container."""
    for path in Path("/proc", str(pid), "fd").glob("*"):
        try:
            yield os.readlink(path)
        except OSError:
            continue
