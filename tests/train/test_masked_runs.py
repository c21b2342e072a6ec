"""Runs of masked models: the reference's losses, exact under any interruption, and they learn."""

import json
import math
import random
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from torch.distributed.checkpoint.state_dict_loader import load
from transformers import BertConfig, BertForPreTraining

from stoker.data import order
from stoker.data.bert.masking import Masking, draw
from stoker.data.bert.pairs import Pairs, PairSet, fields
from stoker.data.prepare import prepare
from stoker.data.tokenizer import load_folder
from stoker.data.wordpiece import masking_vocabulary
from stoker.inference.evaluate import evaluate_masked
from stoker.models.bert import SPEC
from stoker.models.load import load_model
from stoker.rundir import RunDir
from stoker.spec.data import Data, TrainTokenizer
from stoker.spec.errors import UserError

LENGTH, SEQUENCES, STEPS, RATE, WARMUP, SEED = 32, 8, 50, 3e-3, 10, 3
BERT = ["model.family=bert", "model.hidden=80"]


def losses(run: RunDir) -> dict[int, tuple[float, float, float]]:
    return {record["step"]: tuple(record[key] for key in ("loss", "loss_mlm", "loss_nsp")) for record in run.metrics()}


def test_the_loss_curve_is_that_of_a_plain_transformers_loop(worker, pairs: Path) -> None:
    run = worker(
        f"data={pairs}", *BERT, f"batch.sequences={SEQUENCES}", f"until.steps={STEPS}", f"optim.lr={RATE}",
        f"optim.warmup={WARMUP}", f"seed={SEED}", "checkpoint.first=true", "optim.schedule=linear", "batch.micro=3",
    )  # fmt: skip
    ours = losses(run)
    theirs = plain_loop(run, PairSet.open(pairs))
    assert [ours[step] for step in range(1, STEPS + 1)] == [pytest.approx(parts, rel=1e-4) for parts in theirs]
    assert ours[STEPS][1] < ours[1][1] - 1


def test_tensorboard_shows_every_part_of_the_loss(worker, pairs: Path) -> None:
    run = worker(f"data={pairs}", *BERT, "until.steps=2", "log.tensorboard=true")
    board = EventAccumulator(str(run.tensorboard)).Reload()
    for part in ("loss_mlm", "loss_nsp"):
        shown = [scalar.value for scalar in board.Scalars(f"losses/{part}")]
        assert shown == pytest.approx([record[part] for record in run.metrics()], rel=1e-6)


def plain_loop(run: RunDir, pairs: PairSet) -> list[tuple[float, float, float]]:
    model = BertForPreTraining(
        BertConfig(
            num_hidden_layers=2, num_attention_heads=2, hidden_size=32, intermediate_size=80,
            max_position_embeddings=32, vocab_size=pairs.vocab, hidden_dropout_prob=0.0,
            attention_probs_dropout_prob=0.0,
        )
    )  # fmt: skip
    weights = {name: torch.empty_like(p) for name, p in SPEC.build(run.spec().model).named_parameters()}
    load({"model": weights}, checkpoint_id=run.checkpoint(0), no_dist=True)
    model.load_state_dict(SPEC.to_hf(weights), strict=False)
    groups = [
        {"params": [p for p in model.parameters() if p.dim() >= 2], "weight_decay": 0.1},
        {"params": [p for p in model.parameters() if p.dim() < 2], "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(groups, betas=(0.9, 0.95), eps=1e-8)
    vocabulary = masking_vocabulary(load_folder(pairs.tokenizer).tokenizer, "x")
    losses = []
    for step in range(1, STEPS + 1):
        drawn = order.batch(pairs.train.order(SEED, LENGTH), sequences=SEQUENCES, step=step)
        rows = fields(pairs.train.read(drawn.ids, LENGTH), LENGTH)
        masks = draw(rows, drawn.ids, drawn.epochs, Masking(seed=SEED), vocabulary)
        real = np.arange(LENGTH) < rows.real_N[:, None]
        result = model(
            torch.from_numpy(masks.tokens_NL),
            attention_mask=torch.from_numpy(real).long(),
            token_type_ids=torch.from_numpy(real & (np.arange(LENGTH) >= rows.second_N[:, None])).long(),
        )
        entropy = torch.nn.functional.cross_entropy
        mlm = entropy(result.prediction_logits.flatten(0, 1), torch.from_numpy(masks.goals_NL).flatten())
        nsp = entropy(result.seq_relationship_logits, torch.from_numpy(rows.label_N))
        (mlm + nsp).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for group in optimizer.param_groups:
            group["lr"] = RATE * (step / WARMUP if step <= WARMUP else 1 - (step - WARMUP) / (STEPS - WARMUP))
        optimizer.step()
        optimizer.zero_grad()
        losses.append(((mlm + nsp).item(), mlm.item(), nsp.item()))
    return losses


@pytest.mark.parametrize("overrides", [["optim.kind=lamb", "optim.lr=1e-2"], ["model.dropout=0.1", "batch.micro=1"]])
def test_a_paused_run_resumes_bit_for_bit(worker, pairs: Path, overrides: list[str]) -> None:
    overrides = [f"data={pairs}", *BERT, "until.steps=12", *overrides]
    whole = worker("name=whole", *overrides)
    for steps in (5, 10):
        parts = worker("name=parts", *overrides, "until.steps_this_run=5")
        assert (parts.exit().state, parts.exit().code, parts.exit().step) == ("paused", 0, steps)
        assert parts.exit().reason == "until.steps_this_run is reached"
    parts = worker("name=parts", *overrides, "until.steps_this_run=5")
    assert (parts.exit().state, parts.exit().step) == ("done", 12)
    assert losses(parts) == losses(whole)
    assert len(losses(whole)) == 12


def test_evaluating_the_held_out_text_afterwards_gives_the_same_loss(worker, pairs: Path) -> None:
    run = worker(f"data={pairs}", *BERT, "until.steps=4", "eval.sequences=9", "optim.lr=1e-2")
    (logged,) = [record["val_loss"] for record in run.metrics() if "val_loss" in record]
    prepared, loaded = PairSet.open(pairs), load_model(run.path, device="cpu")
    assert prepared.validation.records > 9
    score = evaluate_masked(loaded.model, prepared, prepared.validation, run.spec().objective, sequences=9)
    assert score.loss == pytest.approx(logged, abs=1e-6)
    assert score.loss == sum(score.parts.values())
    assert 0 <= score.word_accuracy <= 1
    assert (score.sequences, list(score.parts)) == (9, ["loss_mlm", "loss_nsp"])


def test_masks_change_in_the_second_epoch_unless_they_are_static(worker, pairs: Path, tmp_path: Path) -> None:
    small = tmp_path / "small.txt"
    small.write_text(" ".join(f"the stoker feeds fire {n}." for n in range(60)))
    data = Data(path=str(small), tokenizer=str(pairs / "tokenizer"), validation=0.0)
    prepared = prepare(data, tmp_path / "set", pairs=Pairs(length=LENGTH))
    samples = prepared.train.samples(LENGTH)
    overrides = [f"data={prepared.path}", *BERT, f"batch.sequences={samples}", "optim.lr=1e-12", "until.epochs=2"]
    overrides += ["optim.schedule=constant", "optim.warmup=0"]
    for masking, same in (("static", True), ("epoch", False)):
        run = worker(f"name={masking}", *overrides, f"objective.masking={masking}")
        first, second = (record["loss_mlm"] for record in run.metrics())
        assert (abs(first - second) < 1e-5) == same


def test_data_of_the_wrong_kind_is_refused(worker, pairs: Path) -> None:
    with pytest.raises(UserError, match=r"holds tokens, and model\.family bert is trained on sentence pairs"):
        worker(*BERT, "until.steps=1")
    with pytest.raises(UserError, match=r"holds sentence pairs, and model\.family gpt2 is trained on tokens"):
        worker(f"data={pairs}", "until.steps=1")
    with pytest.raises(UserError, match="sentence pairs, less than one batch of 5000"):
        worker(f"data={pairs}", *BERT, "until.steps=1", "batch.sequences=5000")


def grammar(folder: Path, documents: int) -> Path:
    """Each document is about one trade and uses its words, so the next sentence can be predicted."""
    chance = random.Random(11)
    words = [f"{a}{b}{c}" for a in "bdfgklmnprst" for b in "aeiou" for c in "lmnrst"]
    chance.shuffle(words)
    trades = [words[start : start + 6] for start in range(0, 36, 6)]
    lines = []
    for _ in range(documents):
        trade = chance.choice(trades)
        sentences = [f"{trade[at]} {trade[2 + at]} {trade[4 + at]}." for at in chance.choices((0, 1), k=12)]
        lines.append(json.dumps({"text": " ".join(sentences)}) + "\n")
    (folder / "made.jsonl").write_text("".join(lines))
    return folder / "made.jsonl"


def test_it_learns_words_and_next_sentences_of_a_synthetic_corpus(worker, tmp_path: Path) -> None:
    data = Data(path=str(grammar(tmp_path, 1500)), tokenizer=TrainTokenizer(train=300), validation=0.1)
    prepared = prepare(data, tmp_path / "set", pairs=Pairs(length=LENGTH))
    assert isinstance(prepared, PairSet)
    run = worker(
        f"data={prepared.path}", *BERT, "model.init_std=0.1", "batch.sequences=32", "until.steps=500", "optim.lr=4e-3",
        "optim.warmup=40", "optim.schedule=linear", "log.every=100", "optim.weight_decay=0.01",
    )  # fmt: skip
    loaded = load_model(run.path, device="cpu")
    score = evaluate_masked(loaded.model, prepared, prepared.validation, run.spec().objective)
    rows = fields(prepared.train.read(np.arange(prepared.train.records), LENGTH), LENGTH)
    special = masking_vocabulary(load_folder(prepared.tokenizer).tokenizer, "x").special
    counts = Counter(rows.tokens_NL[~special[rows.tokens_NL]].tolist())
    total = sum(counts.values())
    unigram = -sum(n / total * math.log(n / total) for n in counts.values())
    print(f"unigram {unigram:.3f}, {score}")
    assert score.parts["loss_mlm"] < unigram - 0.5
    assert score.next_accuracy >= 0.8
    assert score.sequences > 50
