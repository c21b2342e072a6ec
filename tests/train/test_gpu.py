"""The promises of a run, on a GPU. Continuous integration has none: run this by hand where there is one."""

import hashlib
import json
import os
import signal
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import GPT2Config, GPT2LMHeadModel

from stoker.data.bert.masking import Masking
from stoker.data.shards import Index, Shard
from stoker.models.build import new_model
from stoker.models.gpt2 import SPEC
from stoker.spec.model import Model
from stoker.train.batches import TrainingBatch
from stoker.train.objectives.masked import Masked
from tests.written import events_of

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU here")

OVERRIDES = [
    "model.layers=4", "model.heads=4", "model.width=256", "model.context=256", "model.dropout=0.1",
    "batch.sequences=16", "batch.length=256", "batch.micro=4", "until.steps=60",
    "checkpoint.every=10", "log.every=1", "eval.every=20", "optim.warmup=5", "on.device=cuda", "on.workers=1",
]  # fmt: skip


@pytest.fixture(scope="module")
def random_tokens(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A token set made without the tools of `stoker prepare`, which may be missing on a GPU machine."""
    folder = tmp_path_factory.mktemp("random")
    numbers = torch.randint(1000, (200_000,), generator=torch.Generator().manual_seed(0)).to(torch.int16).numpy()
    shards = []
    for split, tokens in (("train", numbers[:190_000]), ("validation", numbers[190_000:])):
        written = tokens.astype("<u2").tobytes()
        (folder / f"{split}-00000.bin").write_bytes(written)
        digest = hashlib.sha256(written).hexdigest()
        shards.append([Shard(file=f"{split}-00000.bin", tokens=len(tokens), sha256=digest)])
    (folder / "tokenizer").mkdir()
    bare = {"version": "1.0", "added_tokens": [], "model": {"type": "WordLevel", "vocab": {"a": 0}, "unk_token": "a"}}
    (folder / "tokenizer" / "tokenizer.json").write_text(json.dumps(bare))
    Index(
        key="random", dtype="uint16", vocab=1000, end=0, tokenizer="", trained=None, documents=1, bytes=1, skipped=0,
        train=shards[0], validation=shards[1],
    ).write(folder)  # fmt: skip
    return folder


def losses(run) -> dict[int, float]:
    return {record["step"]: record["loss"] for record in run.metrics()}


@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
def test_a_deterministic_run_killed_on_a_gpu_resumes_bit_for_bit(
    stoker, random_tokens: Path, eventually, workers_of, precision: str
) -> None:
    overrides = [*OVERRIDES, f"data={random_tokens}", f"precision={precision}", "deterministic=true", "compile=false"]
    stoker("train", "name=whole", *overrides)
    process = stoker.start("train", "name=killed", *overrides)
    run = stoker.run("killed")
    eventually(lambda: max(losses(run), default=0) >= 25)
    os.kill(workers_of(process)[0], signal.SIGKILL)
    output, _ = process.communicate(timeout=300)
    assert process.returncode == 0, output
    assert any(event["kind"] == "resumed" for event in events_of(run))
    assert losses(run) == losses(stoker.run("whole"))
    assert losses(run)[60] < losses(run)[1]


def test_a_gpu_run_reports_memory_and_utilisation(stoker, random_tokens: Path) -> None:
    stoker("train", "name=plain", f"data={random_tokens}", *OVERRIDES)
    record = stoker.run("plain").metrics()[-1]
    assert 0 < record["memory_gib"] < torch.cuda.get_device_properties(0).total_memory / 2**30
    assert record["mfu"] is None or 0 < record["mfu"] < 1
    started = next(event for event in events_of(stoker.run("plain")) if event["kind"] == "started")
    assert started["precision"] == ("bf16" if torch.cuda.get_device_capability()[0] >= 8 else "fp32")


def test_on_a_gpu_the_logits_are_the_references() -> None:
    torch.manual_seed(0)
    config = GPT2Config(n_layer=4, n_head=4, n_embd=256, n_positions=128, vocab_size=1000, initializer_range=0.1)
    reference = GPT2LMHeadModel(config).eval().cuda()
    ours = new_model(Model(layers=4, heads=4, width=256, context=128, vocab=1000)).eval().cuda()
    ours.load_state_dict(SPEC.from_hf(reference.state_dict()))
    tokens = torch.randint(1000, (4, 128)).cuda()
    with torch.no_grad():
        assert torch.allclose(ours(tokens), reference(tokens).logits, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("packs", [False, True])
def test_on_a_gpu_packed_rows_have_the_losses_and_gradients_of_padded_ones(packs: bool) -> None:
    torch.manual_seed(0)
    model = new_model(Model(family="bert", layers=3, heads=4, width=256, context=128, vocab=1000, init_std=0.06)).cuda()
    rows = torch.zeros(24, 128 + 3 + 2, dtype=torch.int64)
    rows[:, :128] = torch.randint(5, 1000, (24, 128))
    rows[:20, 128] = torch.randint(8, 129, (20,))
    rows[:20, 129:] = torch.tensor([5, 1, 3, 77])
    batch = TrainingBatch(step=1, samples=np.arange(20), epochs=np.zeros(20, np.int64), rows=rows)
    results = []
    for masked, half in ((Masked(128, Masking(), None), False), (Masked(128, Masking(), None, packs=packs), True)):
        model.zero_grad()
        sums = torch.zeros(2, device="cuda")
        for inputs in masked.cut(batch, number=3, size=8):
            with torch.autocast("cuda", torch.bfloat16, enabled=half):
                parts = masked.loss(model, *(tensor.cuda() for tensor in inputs))
            parts.sum().backward()
            sums += parts.detach()
        results.append((sums.cpu(), torch.cat([p.grad.flatten() for p in model.parameters()]).cpu()))
    (wanted, gradient), (got, other) = results
    assert torch.allclose(got, wanted, rtol=2e-2)
    assert torch.nn.functional.cosine_similarity(gradient, other, dim=0) > 0.99


@torch.no_grad()
def test_on_a_gpu_a_decoder_gives_the_logits_of_the_model() -> None:
    torch.manual_seed(0)
    model = new_model(Model(layers=4, heads=4, width=256, context=64, vocab=1000, init_std=0.1)).eval().cuda()
    rows = [torch.randint(1000, (length,)) for length in (40, 50, 30)]
    decoder = SPEC.decoder(model, 3, 64)
    for number, row in enumerate(rows):
        decoder.read([number], row[None, :-10])
    for i in range(-10, 0):
        decoded = decoder.step(torch.stack([row[i] for row in rows]))
    for row, logits in zip(rows, decoded, strict=True):
        assert torch.allclose(model(row[None].cuda())[0, -1], logits, rtol=1e-3, atol=1e-3)
