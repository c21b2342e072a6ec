"""What the workers of a run use of this machine or pod: read from /proc, nvidia-smi and neuron-monitor."""

import os
import re
import socket
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from stoker.launch.machine import query
from stoker.observe import neuron
from stoker.observe.chips import Gpu
from stoker.rundir import RunDir
from stoker.spec import contract
from stoker.spec.errors import UserError

PROC = Path("/proc")
TICK = os.sysconf("SC_CLK_TCK")
PAGE = os.sysconf("SC_PAGE_SIZE")
GPU_DEVICE = re.compile(r"/dev/nvidia\d+")
MIB = 2**20
GOES_ON = ("running", "waiting", "restarting")


@dataclass(frozen=True, kw_only=True, slots=True)
class Use:
    """What one worker uses, with all the processes that it has started."""

    rank: int
    pid: int
    cpu: float
    """Percent of one core, since the last look."""
    memory: int
    """Resident bytes."""
    threads: int
    gpu: Gpu | None
    """The one that it computes on, if it does; or its Neuron cores."""


@dataclass(frozen=True, kw_only=True, slots=True)
class _Process:
    pid: int
    parent: int
    seconds: float
    """Of CPU time so far."""
    memory: int
    threads: int


class Top:
    """Looks at the workers of a run on this machine again and again."""

    def __init__(self, run: RunDir) -> None:
        self._run = run
        self._looked = time.monotonic()
        self._seconds = {root.pid: _seconds(tree) for _, root, tree in self._workers()}

    def look(self) -> list[Use]:
        """By rank; a worker that started after the last look has used nothing yet."""
        workers, now = list(self._workers()), time.monotonic()
        passed = max(1e-3, now - self._looked)
        gpus = read_gpus(query("index,uuid,utilization.gpu,memory.used,memory.total"))
        cores = neuron.look()
        found = []
        for environment, root, tree in workers:
            used = _seconds(tree) - self._seconds.get(root.pid, _seconds(tree))
            found.append(
                Use(
                    rank=int(environment["RANK"]),
                    pid=root.pid,
                    cpu=max(0.0, 100 * used / passed),  # one of the tree may have ended and taken its time with it
                    memory=sum(one.memory for one in tree),
                    threads=sum(one.threads for one in tree),
                    gpu=_gpu(root.pid, environment, gpus) or neuron.of(cores, {one.pid for one in tree}),
                )
            )
        self._looked, self._seconds = now, {root.pid: _seconds(tree) for _, root, tree in workers}
        return sorted(found, key=lambda use: use.rank)

    def _workers(self) -> Iterator[tuple[dict[str, str], _Process, list[_Process]]]:
        """The environment of each worker, itself, and all that belongs to it."""
        children: dict[int, list[_Process]] = {}
        for process in _processes():
            children.setdefault(process.parent, []).append(process)
        for root in self._roots(children):
            environment = _environment(root.pid)
            if environment.get("RANK", "").isdigit():
                yield environment, root, _tree(root, children)

    def _roots(self, children: dict[int, list[_Process]]) -> list[_Process]:
        """In a pod, whatever has a rank of the run: who holds it may be in another. Else the holder's children."""
        if os.environ.get(contract.ENV_POD):
            known = {one.pid: one for some in children.values() for one in some if self._has_rank(one.pid)}
            return [one for one in known.values() if one.parent not in known]
        holder = self._run.holder()
        if holder is None or not holder["pid"]:  # taken this very moment
            return []
        if holder["host"] != socket.gethostname():
            raise UserError(
                f"run '{self._run.name}' runs on {holder['host']}, not here",
                remedy=f"Run there: stoker top {self._run.path}",
            )
        return children.get(holder["pid"], [])

    def _has_rank(self, pid: int) -> bool:
        found = _environment(pid)
        return "RANK" in found and found.get(contract.ENV_RUN_DIR) == str(self._run.path)


def read_gpus(lines: tuple[str, ...]) -> list[Gpu]:
    """From nvidia-smi's words: `0, GPU-…, 37 %, 1024 MiB, 81559 MiB`; what it cannot tell is [N/A]."""
    found = []
    for line in lines:
        index, uuid, use, memory, total = (word.strip() for word in line.split(","))
        found.append(Gpu(index=index, uuid=uuid, use=_first(use), memory=_bytes(memory), memory_total=_bytes(total)))
    return found


def _gpu(pid: int, environment: dict[str, str], gpus: list[Gpu]) -> Gpu | None:
    """A worker computes on the GPU of its local rank, of those that it may see."""
    if not gpus or not any(map(GPU_DEVICE.fullmatch, _open_files(pid))):
        return None
    local = int(environment.get("LOCAL_RANK", environment["RANK"]))
    chosen = environment.get("CUDA_VISIBLE_DEVICES")
    words = [gpu.index for gpu in gpus] if chosen is None else [word.strip() for word in chosen.split(",")]
    if local >= len(words):
        return None
    return next((gpu for gpu in gpus if gpu.index == words[local] or gpu.uuid.startswith(words[local])), None)


def _tree(root: _Process, children: dict[int, list[_Process]]) -> list[_Process]:
    return [root, *(one for child in children.get(root.pid, []) for one in _tree(child, children))]


def _seconds(tree: list[_Process]) -> float:
    return sum(one.seconds for one in tree)


def _processes() -> Iterator[_Process]:
    for path in PROC.glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rsplit(")", 1)[1].split()  # a name may hold anything, even a bracket
        except OSError:
            continue  # it has ended
        yield _Process(
            pid=int(path.parent.name),
            parent=int(fields[1]),
            seconds=(int(fields[11]) + int(fields[12])) / TICK,
            memory=int(fields[21]) * PAGE,
            threads=int(fields[17]),
        )


def _environment(pid: int) -> dict[str, str]:
    """As it was when the process started; empty when it has ended or belongs to another user."""
    try:
        text = (PROC / str(pid) / "environ").read_bytes().decode(errors="replace")
    except OSError:
        return {}
    return dict(line.split("=", 1) for line in text.split("\0") if "=" in line)


def _open_files(pid: int) -> Iterator[str]:
    for path in (PROC / str(pid) / "fd").glob("*"):
        try:
            yield os.readlink(path)
        except OSError:
            continue


def _first(words: str) -> float | None:
    number = words.split(" ")[0]
    return float(number) if number.replace(".", "", 1).isdigit() else None


def _bytes(words: str) -> int | None:
    number = _first(words)
    return None if number is None else int(number * MIB)
