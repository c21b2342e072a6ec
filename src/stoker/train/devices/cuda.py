"""NVIDIA GPUs: nccl for gradients, gloo for checkpoints and the workers' status."""

import torch

from stoker.spec.errors import UserError
from stoker.train.devices import Device


def device(local_rank: int, _local_world: int) -> Device:
    if local_rank >= torch.cuda.device_count():
        raise UserError(
            f"worker {local_rank} finds {torch.cuda.device_count()} GPUs",
            remedy="Set on.workers to the number of GPUs, or on.device: cpu",
        )
    torch.cuda.set_device(local_rank)
    properties = torch.cuda.get_device_properties(local_rank)
    return Device(
        torch=torch.device("cuda", local_rank),
        chip=properties.name,
        backend="cpu:gloo,cuda:nccl",
        native_bf16=properties.major >= 8,
        memory_bytes=properties.total_memory,
        micro_tokens=65536,
        compile_flops=1e17,
        peak_memory=torch.cuda.max_memory_allocated,
    )
