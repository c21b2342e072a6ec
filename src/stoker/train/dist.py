"""Who this worker is among its peers, and the few words they exchange each step."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta

import torch
import torch.distributed as dist

from stoker.spec import contract
from stoker.spec.errors import UserError
from stoker.train.store import meet

# A peer's death shows at once as a closed connection; this only bounds a peer that is alive and silent.
COLLECTIVE_TIMEOUT = timedelta(minutes=30)


@dataclass(frozen=True, kw_only=True, slots=True)
class Ranks:
    rank: int
    local_rank: int
    world: int
    attempt: int
    restart: int = 0
    """How often workers of this launch were started before."""

    @property
    def first(self) -> bool:
        return self.rank == 0


def ranks() -> Ranks:
    try:
        return Ranks(
            rank=int(os.environ["RANK"]),
            local_rank=int(os.environ["LOCAL_RANK"]),
            world=int(os.environ["WORLD_SIZE"]),
            attempt=int(os.environ[contract.ENV_ATTEMPT]),
            restart=int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")),
        )
    except KeyError as e:
        raise UserError(
            f"a worker needs {e.args[0]} in its environment", remedy="Start runs with: stoker train RUN.yaml"
        ) from e


def connect(me: Ranks, backend: str) -> None:
    store = meet(first=me.first, world=me.world, timeout=COLLECTIVE_TIMEOUT)
    dist.init_process_group(backend, store=store, rank=me.rank, world_size=me.world, timeout=COLLECTIVE_TIMEOUT)


def disconnect() -> None:
    if dist.is_initialized():
        dist.destroy_process_group()


@dataclass(frozen=True, kw_only=True, slots=True)
class Word:
    """What the workers tell each other before a step; all of them then know the same."""

    targets: tuple[int, ...]
    """Of each part of the loss."""
    tokens: int
    sequences: int
    stop: bool
    pause: bool
    save: bool


def agree(mine: Word) -> Word:
    """Sum what is counted; one worker that wants to stop, pause or save is enough."""
    # On the CPU side even beside GPUs, so that no step waits for the device here.
    counts = [mine.tokens, mine.sequences, mine.stop, mine.pause, mine.save, *mine.targets]
    words = torch.tensor(counts, dtype=torch.int64)
    dist.all_reduce(words)
    tokens, sequences, stop, pause, save, *targets = words.tolist()
    return Word(
        targets=tuple(targets), tokens=tokens, sequences=sequences, stop=stop > 0, pause=pause > 0, save=save > 0
    )


def totals(values: Sequence[float]) -> list[float]:
    """The sum of each over all workers, in double precision and in the order of ranks."""
    mine = torch.tensor(values, dtype=torch.float64)
    parts = [torch.zeros_like(mine) for _ in range(dist.get_world_size())]
    dist.all_gather(parts, mine)
    return [float(sum(column)) for column in zip(*(part.tolist() for part in parts), strict=True)]


def from_first(value: object) -> object:
    """What the first worker says, told to all."""
    box = [value]
    dist.broadcast_object_list(box, src=0)
    return box[0]
