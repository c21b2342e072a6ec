"""`python -m stoker.train.preflight DEVICE COUNT`: are this node's chips present, free, correct and fast?

Prints one JSON object. A matrix product is checked exactly: its numbers are integers small enough for bf16.
"""

import json
import os
import sys
import tempfile
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.multiprocessing.spawn import ProcessException, spawn

from stoker.spec.errors import first_line

SIZE = {"cuda": 8192, "cpu": 512}
SPARSE = 64  # one entry in 64 is 1, the others 0: no sum exceeds SIZE / SPARSE = 128, and bf16 holds integers to 256
MEASURE_S = 0.3
REDUCED = {"cuda": 64 << 20, "cpu": 1 << 20}  # float32 numbers
REDUCTIONS = 5
COLLECTIVE_TIMEOUT = timedelta(seconds=60)


def main(argv: list[str]) -> int:
    device, count = argv[0], int(argv[1])
    print(json.dumps(preflight(device, count)))
    return 0


def preflight(device: str, count: int) -> dict[str, Any]:
    """`count`: the number of GPUs expected; on a CPU, of workers to reduce over."""
    present = torch.cuda.device_count() if device == "cuda" else 1
    world = min(present, count) if device == "cuda" else count
    return {
        "device": device,
        "wanted": count if device == "cuda" else 1,
        "devices": [_chip(device, index) for index in range(present)],
        "all_reduce": _all_reduce(device, world),
    }


def _chip(device: str, index: int) -> dict[str, Any]:
    facts: dict[str, Any] = {"index": index, "name": device, "memory": 0, "free": 0, "tflops": 0.0, "right": False}
    try:
        if device == "cuda":
            facts["name"] = torch.cuda.get_device_name(index)
            facts["free"], facts["memory"] = torch.cuda.mem_get_info(index)
        facts["right"], facts["tflops"] = _product(torch.device(device, index), SIZE[device])
    except RuntimeError as e:
        facts["error"] = first_line(e)
    return facts


def _product(device: torch.device, size: int) -> tuple[bool, float]:
    """Whether the product is correct, by multiplying it and its factors with a random vector; and TFLOP/s."""
    numbers = torch.Generator().manual_seed(0)
    positions = torch.arange(size)
    left = ((7 * positions[None, :] + positions[:, None]) % SPARSE == 0).bfloat16()
    right = torch.randint(-1, 2, (size, size), generator=numbers).bfloat16()
    vector = torch.randint(1, 1000, (size,), generator=numbers).double()
    on_left, on_right = left.to(device), right.to(device)
    product = on_left @ on_right
    same = torch.equal(product.cpu().double() @ vector, left.double() @ (right.double() @ vector))
    times, began = 0, time.monotonic()
    while time.monotonic() - began < MEASURE_S:
        on_left @ on_right
        times += 1
        if device.type == "cuda":
            torch.cuda.synchronize(device)
    return same, 2 * size**3 * times / (time.monotonic() - began) / 1e12


def _all_reduce(device: str, world: int) -> dict[str, Any]:
    if world < 2:
        return {"world": world, "gbytes": None}
    with tempfile.TemporaryDirectory() as folder:
        try:
            spawn(_reduce, args=(device, world, folder), nprocs=world)
            return {"world": world, "gbytes": float((Path(folder) / "gbytes").read_text())}
        except (ProcessException, OSError) as e:
            return {"world": world, "error": str(e).strip().splitlines()[-1]}


def _reduce(rank: int, device: str, world: int, folder: str) -> None:
    """Bus bandwidth: what a ring all-reduce moves over each link."""
    target = torch.device(device, rank) if device == "cuda" else torch.device("cpu")
    if device == "cuda":
        torch.cuda.set_device(rank)
    os.environ |= {"GLOO_SOCKET_IFNAME": "lo", "NCCL_SOCKET_IFNAME": "=lo"}  # reachable from this machine only
    dist.init_process_group(
        "nccl" if device == "cuda" else "gloo",
        init_method=f"file://{folder}/store",
        rank=rank,
        world_size=world,
        timeout=COLLECTIVE_TIMEOUT,
    )
    numbers = torch.full((REDUCED[device],), float(rank + 1), device=target)
    dist.all_reduce(numbers)
    if not bool((numbers == world * (world + 1) / 2).all()):
        raise RuntimeError("the sum is wrong")
    dist.barrier()
    began = time.monotonic()
    for _ in range(REDUCTIONS):
        dist.all_reduce(numbers)
    dist.barrier()
    if device == "cuda":
        torch.cuda.synchronize()
    spent = (time.monotonic() - began) / REDUCTIONS
    if rank == 0:
        moved = 2 * (world - 1) / world * 4 * REDUCED[device]
        (Path(folder) / "gbytes").write_text(str(moved / spent / 1e9))
    dist.destroy_process_group()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
