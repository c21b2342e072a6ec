"""This worker's rank, its process group, and the small collectives of each step."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta

import torch
import torch.distributed as dist

from stoker.spec import contract
from stoker.spec.errors import UserError
from stoker.train.tcp_store import connect_store

# A dead peer shows at once as a closed connection; this only bounds a peer that is alive but does not answer.
COLLECTIVE_TIMEOUT = timedelta(minutes=30)


@dataclass(frozen=True, kw_only=True, slots=True)
class Ranks:
    rank: int
    local_rank: int
    world: int
    local_world: int = 1
    """Workers on this node."""
    attempt: int
    restart: int = 0
    """How often the workers of this launch were restarted."""

    @property
    def first(self) -> bool:
        return self.rank == 0


def ranks() -> Ranks:
    """From the environment that torchrun and the supervisor set."""
    try:
        return Ranks(
            rank=int(os.environ["RANK"]),
            local_rank=int(os.environ["LOCAL_RANK"]),
            world=int(os.environ["WORLD_SIZE"]),
            local_world=int(os.environ["LOCAL_WORLD_SIZE"]),
            attempt=int(os.environ[contract.ENV_ATTEMPT]),
            restart=int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")),
        )
    except KeyError as e:
        raise UserError(
            f"a worker needs {e.args[0]} in its environment", remedy="Start runs with: stoker train RUN.yaml"
        ) from e


def connect(worker: Ranks, backend: str) -> None:
    store = connect_store(serve=worker.first, world=worker.world, timeout=COLLECTIVE_TIMEOUT)
    dist.init_process_group(backend, store=store, rank=worker.rank, world_size=worker.world, timeout=COLLECTIVE_TIMEOUT)


def disconnect() -> None:
    if dist.is_initialized():
        dist.destroy_process_group()


@dataclass(frozen=True, kw_only=True, slots=True)
class StepStatus:
    """What a worker reports before a step: the size of its share, and whether it wants to stop, pause or save."""

    targets: tuple[int, ...]
    """Of each part of the loss."""
    tokens: int
    sequences: int
    stop: bool
    pause: bool
    save: bool


def all_reduce_status(status: StepStatus) -> StepStatus:
    """The same on all workers: counts are summed, and a single worker can make all stop, pause or save."""
    # On the CPU even with GPUs, so that no step waits for the device here.
    counts = [status.tokens, status.sequences, status.stop, status.pause, status.save, *status.targets]
    total = torch.tensor(counts, dtype=torch.int64)
    dist.all_reduce(total)
    tokens, sequences, stop, pause, save, *targets = total.tolist()
    return StepStatus(
        targets=tuple(targets), tokens=tokens, sequences=sequences, stop=stop > 0, pause=pause > 0, save=save > 0
    )


def all_reduce_sums(values: Sequence[float]) -> list[float]:
    """The sum of each value over all workers, in double precision and in the order of ranks."""
    own = torch.tensor(values, dtype=torch.float64)
    parts = [torch.zeros_like(own) for _ in range(dist.get_world_size())]
    dist.all_gather(parts, own)
    return [float(sum(column)) for column in zip(*(part.tolist() for part in parts), strict=True)]


def broadcast_from_first(value: object) -> object:
    """The first worker's value, on all workers."""
    box = [value]
    dist.broadcast_object_list(box, src=0)
    return box[0]
