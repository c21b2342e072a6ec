"""The seam carries a strategy that splits the model: FSDP2, written here against the Strategy protocol alone."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

WORLD = 2
PEER = '''
import json, sys
from math import ceil
from pathlib import Path

import torch
import torch.distributed as dist
from tokenizers import Tokenizer
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor

from stoker.models.decoder import RereadingDecoder
from stoker.models.generate import Settings
from stoker.models.initial_weights import ParameterBlock
from stoker.rundir import RunDir
from stoker.spec.run import Checkpoint, RunSpec
from stoker.train import engine as engines
from stoker.train.batches import TrainingBatch
from stoker.train.checkpoint import Checkpoints
from stoker.train.choices import Choices
from stoker.train.devices import device
from stoker.train.objectives.causal import Causal
from stoker.train.parallel import Parallel
from stoker.train.process_group import Ranks

rank, world, folder = int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3])


class Sharded:
    """Each worker holds one part of every parameter."""

    def __init__(self, parallel):
        self.parallel = parallel

    def shard(self, model):
        assert all(p.is_meta for p in model.parameters())
        mesh = init_device_mesh("cpu", (self.parallel.world,))
        for block in model.h:
            fully_shard(block, mesh=mesh)
        fully_shard(model, mesh=mesh)
        for module in (*model.h, model):
            module.set_gradient_divide_factor(1.0)
            module.set_force_sum_reduction_for_comms(True)  # gloo multiplies nothing in a reduction
        self.model = model

    def block(self, parameter):
        size = ceil(parameter.shape[0] / world)
        offsets = (min(rank * size, parameter.shape[0]), *([0] * (parameter.dim() - 1)))
        return ParameterBlock(tensor=parameter.to_local(), shape=tuple(parameter.shape), offsets=offsets)

    def gradients(self, parameters):
        return Gradients(self.model, parameters)

    def share_buffers(self, buffers):
        raise AssertionError("GPT-2 has none")

    def decoder(self, family):
        return RereadingDecoder

    def mean_and_std(self, tensor):
        whole = tensor.full_tensor()
        return float(whole.mean()), float(whole.std()) if whole.numel() > 1 else 0.0


class Gradients:
    def __init__(self, model, parameters):
        self.model, self.parameters = model, parameters

    def zero(self):
        for p in self.parameters:
            p.grad = None
        self.model.set_requires_gradient_sync(False)

    def send_with_next_backward(self):
        self.model.set_requires_gradient_sync(True)

    def finish(self):
        assert all(isinstance(p.grad, DTensor) for p in self.parameters)

    def norm(self):
        squares = sum(p.grad.to_local().square().sum() for p in self.parameters)
        dist.all_reduce(squares)
        return squares.sqrt()

    def scale(self, factor):
        for p in self.parameters:
            p.grad.mul_(factor)


def train(steps, kind):
    """Losses, norms, statistics and a sample of some steps."""
    spec = RunSpec.model_validate(
        {"data": {"path": "x"}, "until": {"steps": 9}, "batch": {"length": 16}, "seed": 5, "optim": {"lr": 1e-2},
         "model": {"layers": 2, "heads": 2, "width": 32, "context": 16, "vocab": 64}}
    )
    me = Ranks(rank=rank, local_rank=rank, world=world, attempt=1)
    engine = engines.Engine(spec, me, device("cpu", local_rank=0, local_world=1), Causal())
    if kind == "sharded":
        engine.parallel = Parallel(world=world, shard=world)
        engine.strategy = Sharded(engine.parallel)
    engine.materialise(Choices(precision="fp32", compile=False, micro=2), accumulation=2, micro=2)
    held = sum((p.to_local() if isinstance(p, DTensor) else p).numel() for p in engine.model.parameters())
    results = {"held": held, "size": engine.size, "losses": [], "norms": []}
    for step in range(1, steps + 1):
        rows = torch.randint(64, (4, 17), generator=torch.Generator().manual_seed(100 * step + rank))
        ids = torch.arange(4).numpy()
        batch = TrainingBatch(step=step, samples=ids, epochs=0 * ids, rows=rows)
        sums, norm = engine.backward(batch, [world * 4 * 16])
        engine.apply(norm=norm, rate=1e-2)
        dist.all_reduce(sums)
        results["losses"].append(float(sums) / (world * 64))
        results["norms"].append(norm)
    results["statistics"] = engine.parameter_statistics()
    results["attention"] = engine.attention_extremes(rows[:1])
    tokenizer = Tokenizer.from_str(json.dumps(VOCABULARY))
    results["sample"] = engine.sample(tokenizer, 0, Settings(tokens=8, past_end=True))
    run = RunDir(folder / kind)
    run.checkpoints.mkdir(parents=True, exist_ok=True)
    dist.barrier()
    checkpoints = Checkpoints(run, me, Checkpoint())
    checkpoints.save(steps, engine.tensors(), {"progress": {"step": steps}})
    assert checkpoints.finish_save(wait=True) is None
    checkpoints.close()
    return engine, results


def resumes_from(engine, kind):
    """The loss of one more step, from a checkpoint that a run of this kind saved."""
    checkpoints = Checkpoints(RunDir(folder / kind), engine.worker, Checkpoint())
    checkpoints.read(checkpoints.find(), engine.tensors())
    checkpoints.close()
    rows = torch.randint(64, (4, 17), generator=torch.Generator().manual_seed(rank))
    ids = torch.arange(4).numpy()
    losses = []
    for step in (4, 5):
        sums, norm = engine.backward(TrainingBatch(step=step, samples=ids, epochs=0 * ids, rows=rows), [world * 4 * 16])
        engine.apply(norm=norm, rate=1e-2)
        dist.all_reduce(sums)
        losses.append(float(sums) / (world * 64))
    return losses


VOCABULARY = {
    "version": "1.0", "added_tokens": [],
    "model": {"type": "WordLevel", "vocab": {f"w{i}": i for i in range(64)}, "unk_token": "w0"},
}
dist.init_process_group("gloo", init_method=f"file://{folder / 'store'}", rank=rank, world_size=world)
made = {kind: train(3, kind) for kind in ("replicated", "sharded")}
report = {kind: results for kind, (_, results) in made.items()}
report["exchanged"] = [
    resumes_from(engine, saved) for saved in ("replicated", "sharded") for engine, _ in made.values()
]
(folder / f"rank-{rank}").write_text(json.dumps(report))
dist.destroy_process_group()
'''


def test_a_model_split_over_two_workers_trains_like_a_replicated_one(tmp_path: Path) -> None:
    peers = [
        subprocess.Popen([sys.executable, "-c", PEER, str(rank), str(WORLD), str(tmp_path)]) for rank in range(WORLD)
    ]
    assert [peer.wait(timeout=300) for peer in peers] == [0] * WORLD
    reports = [json.loads((tmp_path / f"rank-{rank}").read_text()) for rank in range(WORLD)]
    for report in reports:
        whole, split = report["replicated"], report["sharded"]
        assert whole["held"] == whole["size"]
        assert split["held"] == split["size"] // WORLD
        for key in ("losses", "norms"):
            assert split[key] == pytest.approx(whole[key], rel=1e-5)
        for name, statistics in whole["statistics"].items():
            assert split["statistics"][name] == pytest.approx(statistics, rel=1e-3, abs=1e-6), name
        for layer, extremes in enumerate(whole["attention"]):
            assert split["attention"][layer] == pytest.approx(extremes, rel=1e-4)
        first, *others = report["exchanged"]
        assert all(losses == pytest.approx(first, rel=1e-5) for losses in others), "each reads what the other saved"
    assert reports[0]["sharded"]["sample"] == reports[1]["sharded"]["sample"] == reports[0]["replicated"]["sample"]
