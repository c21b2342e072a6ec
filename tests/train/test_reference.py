"""Our training against a plain loop of transformers and torch, fed the same batches."""

import math
from pathlib import Path

import pytest
import torch
from torch.distributed.checkpoint.state_dict_loader import load
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM, PreTrainedModel

from stoker.data import order
from stoker.data.shards import TokenSet
from stoker.models import model_spec
from stoker.rundir import RunDir

STEPS, SEQUENCES, LENGTH, SEED, RATE, WARMUP = 50, 8, 32, 3, 3e-3, 10
OVERRIDES = [
    "model.layers=2", "model.heads=4", "model.width=48", "model.context=40", f"until.steps={STEPS}",
    f"batch.sequences={SEQUENCES}", f"batch.length={LENGTH}", f"optim.lr={RATE}", f"optim.warmup={WARMUP}",
    f"seed={SEED}", "precision=fp32", "log.every=1", "checkpoint.first=true", "checkpoint.every=1000",
    "on.workers=2",
]  # fmt: skip


FAMILIES = {
    "gpt2": [],
    "llama": ["model.family=llama", "model.kv_heads=2", "model.hidden=80", "model.rope_scaling={factor: 4}"],
}


@pytest.mark.parametrize("family", FAMILIES)
def test_our_loss_curve_is_that_of_a_plain_transformers_loop(stoker, tokens: Path, family: str) -> None:
    stoker("train", "name=ours", f"data={tokens}", *OVERRIDES, *FAMILIES[family])
    run = stoker.run("ours")
    ours = [record["loss"] for record in run.metrics()]
    assert len(ours) == STEPS
    assert ours == pytest.approx(plain_loop(run, TokenSet.open(tokens)), rel=1e-4)
    assert ours[-1] < ours[0] - 1


def reference(family: str, vocab: int) -> PreTrainedModel:
    if family == "gpt2":
        config = GPT2Config(
            n_layer=2, n_head=4, n_embd=48, n_positions=40, vocab_size=vocab,
            resid_pdrop=0, embd_pdrop=0, attn_pdrop=0,
        )  # fmt: skip
        return GPT2LMHeadModel(config)
    rope = {"rope_type": "llama3", "rope_theta": 10_000.0, "factor": 4.0, "low_freq_factor": 1.0}
    rope |= {"high_freq_factor": 4.0, "original_max_position_embeddings": 8192}
    config = LlamaConfig(
        num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, hidden_size=48, intermediate_size=80,
        max_position_embeddings=40, vocab_size=vocab, rms_norm_eps=1e-5, rope_parameters=rope,
    )  # fmt: skip
    return LlamaForCausalLM(config)


def plain_loop(run: RunDir, tokens: TokenSet) -> list[float]:
    shape = run.spec().model
    family, model = model_spec(shape.family), reference(shape.family, tokens.vocab)
    weights = {name: torch.empty_like(p) for name, p in family.build(shape).named_parameters()}
    load({"model": weights}, checkpoint_id=run.checkpoint(0), no_dist=True)
    model.load_state_dict(family.to_hf(weights), strict=False)
    matrices = [p for p in model.parameters() if p.dim() >= 2]
    others = [p for p in model.parameters() if p.dim() < 2]
    optimizer = torch.optim.AdamW(
        [{"params": matrices, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}],
        betas=(0.9, 0.95),
        eps=1e-8,
    )
    losses = []
    for step in range(1, STEPS + 1):
        ids = order.batch(tokens.train.order(SEED, LENGTH), sequences=SEQUENCES, step=step).ids
        rows = torch.from_numpy(tokens.train.read(ids, LENGTH))
        logits = model(rows[:, :-1]).logits
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), rows[:, 1:].flatten())
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        fall = 0.5 * (1 + math.cos(math.pi * (step - WARMUP) / (STEPS - WARMUP)))
        for group in optimizer.param_groups:
            group["lr"] = RATE * (step / WARMUP if step <= WARMUP else fall)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses
