"""The masked objective: padding costs nothing, and how a step is split changes only the rounding."""

from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import BertConfig, BertForPreTraining

from stoker.data.bert.masking import Masking
from stoker.data.bert.pairs import PairSet, fields
from stoker.models.bert import SPEC
from stoker.models.build import new_model
from stoker.spec.model import Model
from stoker.spec.run import Objective
from stoker.train.batches import TrainingBatch
from stoker.train.objectives import plain
from stoker.train.objectives.masked import Masked

pytestmark = pytest.mark.usefixtures("one_thread")

LENGTH = 128


@pytest.fixture(scope="module")
def model() -> torch.nn.Module:
    shape = Model(family="bert", layers=2, heads=2, width=32, context=LENGTH, vocab=60, init_std=0.2)
    return new_model(shape, seed=3).eval()


def batch(live: int, rows: int, *, full: bool = False) -> TrainingBatch:
    """Rows of all lengths that come with masks; those from `live` on are empty."""
    chance = np.random.default_rng(4)
    real = np.full(live, LENGTH) if full else chance.integers(5, LENGTH + 1, live)
    records = np.zeros((rows, LENGTH + 3 + 40), np.int64)
    for row, length in zip(records, real.tolist(), strict=False):
        row[:length] = chance.integers(5, 60, length)
        row[LENGTH : LENGTH + 3] = length, length // 2, chance.integers(2)
        number = max(1, round(0.15 * length))
        row[LENGTH + 3 : LENGTH + 3 + number] = 1 + chance.permutation(length - 1)[:number]
        row[LENGTH + 23 : LENGTH + 23 + number] = chance.integers(5, 60, number)
    return TrainingBatch(
        step=1, samples=np.arange(live), epochs=np.zeros(live, np.int64), rows=torch.from_numpy(records)
    )


def objective() -> Masked:
    return Masked(LENGTH, Masking(), None)


def sums(model: torch.nn.Module, rows: TrainingBatch, *, number: int, size: int) -> list[float]:
    cut = objective().cut(rows, number=number, size=size)
    with torch.no_grad():
        return torch.stack([objective().loss(model, *inputs) for inputs in cut]).double().sum(0).tolist()


def test_the_sums_are_the_references(model: torch.nn.Module) -> None:
    whole_batch = batch(12, 12)
    reference = BertForPreTraining(
        BertConfig(
            num_hidden_layers=2, num_attention_heads=2, hidden_size=32, intermediate_size=128,
            max_position_embeddings=LENGTH, vocab_size=60,
        )
    ).eval()  # fmt: skip
    reference.load_state_dict(SPEC.to_hf(model.state_dict()), strict=False)
    rows = fields(whole_batch.rows.numpy(), LENGTH)
    at = np.arange(LENGTH)
    real = torch.from_numpy(at < rows.real_N[:, None])
    labels = torch.full((12, LENGTH), -100)
    for row, places, ids in zip(labels, rows.positions_NP, rows.ids_NP, strict=True):
        row[places[places > 0]] = torch.from_numpy(ids[places > 0])
    with torch.no_grad():
        wanted = reference(
            torch.from_numpy(rows.tokens_NL), attention_mask=real.long(),
            token_type_ids=(real & torch.from_numpy(at >= rows.second_N[:, None])).long(),
        )  # fmt: skip
    entropy = torch.nn.functional.cross_entropy
    words = entropy(wanted.prediction_logits.flatten(0, 1), labels.flatten(), reduction="sum").item()
    following = entropy(wanted.seq_relationship_logits, torch.from_numpy(rows.label_N), reduction="sum").item()
    assert sums(model, whole_batch, number=3, size=4) == pytest.approx([words, following], rel=1e-5)
    counts = objective().count(whole_batch)
    assert counts.targets == (int((labels != -100).sum()), 12)
    assert counts.tokens == int(real.sum())


@pytest.mark.parametrize(("number", "size", "rows"), [(1, 12, 12), (3, 4, 12), (12, 1, 12), (5, 4, 20), (4, 3, 12)])
def test_how_a_step_is_split_changes_only_the_rounding(
    model: torch.nn.Module, number: int, size: int, rows: int
) -> None:
    whole = sums(model, batch(12, 12), number=1, size=12)
    assert sums(model, batch(12, rows), number=number, size=size) == pytest.approx(whole, rel=1e-5)
    assert sums(model, batch(12, rows), number=number, size=size) == sums(
        model, batch(12, rows), number=number, size=size
    )


def test_computation_is_proportional_to_the_real_length() -> None:
    whole_batch = batch(64, 64)
    real = objective().count(whole_batch).tokens
    cut = list(objective().cut(whole_batch, number=8, size=8))
    computed = sum(inputs[0].numel() for inputs in cut)
    assert real < computed < 1.35 * real < 64 * LENGTH
    masked, logits = objective().count(whole_batch).targets[0], sum(len(inputs[4]) for inputs in cut)
    assert masked <= logits < 1.35 * masked


def test_a_worker_without_samples_computes_one_short_shape() -> None:
    empty = batch(0, 8)
    (inputs,) = objective().cut(empty, number=1, size=8)
    assert inputs[0].shape == (8, 32)
    assert objective().count(empty).targets == (0, 0)


@pytest.mark.parametrize("length", [128, 512, 100])
def test_there_are_few_shapes_however_long_a_sequence(length: int) -> None:
    masked = Masked(length, Masking(predictions=round(0.15 * length)), None)
    chance, shapes = np.random.default_rng(5), set()
    for _ in range(200):
        rows = np.zeros((16, length + 3 + 2), np.int64)
        rows[:, length] = chance.integers(5, length + 1, 16)
        rows[:, length + 3] = 1
        whole_batch = TrainingBatch(
            step=1, samples=np.arange(16), epochs=np.zeros(16, np.int64), rows=torch.from_numpy(rows)
        )
        shapes |= {(tuple(i[0].shape), len(i[4])) for i in masked.cut(whole_batch, number=4, size=4)}
    assert 2 < len(shapes) <= 8


def test_compiling_ends_with_the_last_shape(model: torch.nn.Module) -> None:
    compiled, seen = [], set()

    def backend(graph, _inputs):
        compiled.append(graph)
        return graph.forward

    torch._dynamo.reset()
    masked = objective()
    run = torch.compile(lambda *inputs: masked.loss(model, *inputs), backend=backend, dynamic=False)
    for seed in range(12):
        whole_batch = batch(16, 16)
        rows = whole_batch.rows[torch.randperm(16, generator=torch.Generator().manual_seed(seed))[: 16 - seed]]
        part = TrainingBatch(step=1, samples=np.arange(len(rows)), epochs=np.zeros(len(rows), np.int64), rows=rows)
        for inputs in masked.cut(part, number=len(rows) // 4, size=4):
            seen.add((tuple(inputs[0].shape), len(inputs[4])))
            run(*inputs)
    assert len(compiled) <= len(seen) <= 4
    torch._dynamo.reset()


def test_masks_depend_only_on_epoch_and_sample(pairs: Path) -> None:
    pair_set = PairSet.open(pairs)
    masked = plain("masked", pair_set, Objective(), seed=9, device=torch.device("cpu"))
    ids = np.array([40, 3, 17, 8])

    def given(order: np.ndarray, epoch: int) -> dict[int, list[int]]:
        rows = torch.from_numpy(pair_set.train.read(ids[order], 32))
        part = TrainingBatch(step=1, samples=ids[order], epochs=np.full(4, epoch), rows=rows)
        (inputs,) = masked.cut(part, number=1, size=4)
        by_length = np.argsort(rows[:, 32].numpy(), kind="stable")
        return {int(ids[order][row]): tokens.tolist() for row, tokens in zip(by_length, inputs[0], strict=True)}

    first = given(np.arange(4), 0)
    assert first == given(np.array([2, 0, 3, 1]), 0)
    assert first != given(np.arange(4), 1)
