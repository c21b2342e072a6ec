"""A small network on synthetic data with DistributedDataParallel: any script that runs under torchrun runs here too.

The only part that is specific to Stoker is STOKER_RUN_DIR, a folder where the script may save files.
"""

import argparse
import os
import signal
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

SAVED = Path(os.environ.get("STOKER_RUN_DIR", "."), "model.pt")


def main(steps: int, save_every: int) -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 1)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    first = load(model, optimizer) + 1
    if rank == 0:
        print(f"{os.environ.get('GREETING', 'hi')} from {dist.get_world_size()} workers, starting at step {first}")
    stop = torch.zeros(1)
    signal.signal(signal.SIGTERM, lambda *_: stop.fill_(1))
    for step in range(first, steps + 1):
        inputs, targets = batch(step, rank)
        loss = nn.functional.mse_loss(model(inputs), targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        stopping = stop.clone()
        dist.all_reduce(stopping)  # all workers stop after the same step
        if rank == 0 and step % 10 == 0:
            print(f"step {step} loss {loss.item():.6f} lr 0.05")
        if rank == 0 and (step % save_every == 0 or step == steps or stopping):
            save(step, model, optimizer)
        if stopping:
            break
    dist.destroy_process_group()


def batch(step: int, rank: int) -> tuple[torch.Tensor, torch.Tensor]:
    """A function of step and rank, so that a resumed run gets the same batches."""
    inputs = torch.randn(32, 16, generator=torch.Generator().manual_seed(1000 * step + rank))
    return inputs, inputs[:, :1] * inputs[:, 1:2]


def save(step: int, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    temporary = SAVED.with_suffix(".tmp")
    torch.save({"step": step, "model": model.state_dict(), "optimizer": optimizer.state_dict()}, temporary)
    os.replace(temporary, SAVED)  # atomic: after a kill there is the old file or the new one, never a partial one


def load(model: nn.Module, optimizer: torch.optim.Optimizer) -> int:
    """Return the last saved step, or 0."""
    if not SAVED.exists():
        return 0
    state = torch.load(SAVED, weights_only=True)
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    return int(state["step"])


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--save-every", type=int, default=100)
    args = parser.parse_args()
    main(args.steps, args.save_every)
