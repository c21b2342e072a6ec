"""Evaluation gives the losses that training gives."""

import math
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from tokenizers import Tokenizer, decoders, models

from stoker.data.prepare import ignore
from stoker.data.shards import TokenSet
from stoker.data.tokenizer import LoadedTokenizer, load_folder
from stoker.inference.evaluate import evaluate, precision_of, token_widths, tokenise
from stoker.models.build import new_model
from stoker.models.load import load_model
from stoker.spec.data import Data
from stoker.spec.errors import RunFailed, UserError
from stoker.spec.model import Model

pytestmark = pytest.mark.usefixtures("one_thread")

SHAPE = Model(layers=2, heads=2, width=32, context=64, vocab=300, init_std=0.2)
TEXT = "The stoker feeds the engine.\nNaïve 日本語 🚂\n" * 20


@pytest.fixture
def model() -> torch.nn.Module:
    return new_model(SHAPE, seed=3).eval()


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_evaluating_the_same_sequences_gives_the_last_val_loss_of_the_run(worker, precision: str) -> None:
    run = worker("until.steps=6", "eval.sequences=5", "eval.every=4", f"precision={precision}", "optim.lr=1e-2")
    logged = {record["step"]: record["val_loss"] for record in run.metrics() if "val_loss" in record}
    split = TokenSet.open(Path(run.data().shards)).validation
    assert split.samples(32) > 5
    for step in ("newest", "best"):
        loaded = load_model(run.path, step=step, device="cpu")
        assert precision_of(loaded) == precision
        score = evaluate(loaded.model, loaded.shape, split, length=32, sequences=5, precision=precision_of(loaded))
        assert score.loss == pytest.approx(logged[loaded.step], abs=1e-6)
        assert (score.sequences, score.tokens) == (5, 5 * 32)


@torch.no_grad()
def test_every_token_of_a_split_is_predicted_once(model: torch.nn.Module, tokens: Path) -> None:
    split = TokenSet.open(tokens).validation
    whole, left = divmod(split.tokens - 1, 33)
    assert left, "the test needs a short last row"
    seen = []
    score = evaluate(model, SHAPE, split, length=33, progress=lambda done, total: seen.append((done, total)))
    assert (score.tokens, score.sequences, score.bytes) == (split.tokens - 1, whole + 1, None)
    assert seen[-1] == (whole + 1, whole + 1)
    stream = torch.from_numpy(split.read(np.arange(split.tokens - 1), 1))
    text = torch.cat([stream[:, 0], stream[-1:, 1]])
    parts = [text[start : start + 34] for start in range(0, len(text) - 1, 33)]
    loss = sum(float(F.cross_entropy(model(part[None, :-1])[0], part[1:], reduction="sum")) for part in parts)
    assert score.loss == pytest.approx(loss / (len(text) - 1), rel=1e-6)
    assert score.perplexity == pytest.approx(math.exp(score.loss))


def test_text_is_tokenised_as_in_training_and_its_bytes_are_counted(
    model: torch.nn.Module, tokens: Path, tmp_path: Path
) -> None:
    (tmp_path / "book.txt").write_text(TEXT)
    tokenizer = load_folder(tokens / "tokenizer")
    prepared = tokenise(Data(path=str(tmp_path / "book.txt")), tokenizer, tmp_path / "scratch", ignore)
    ids = [*tokenizer.tokenizer.encode(TEXT).ids, tokenizer.end_id]
    assert prepared.train.read(np.array([0]), len(ids) - 1)[0].tolist() == ids
    assert prepared.validation.tokens == 0
    widths = token_widths(tokenizer, 300)
    assert widths[ids].sum() == len(TEXT.encode())
    score = evaluate(model, SHAPE, prepared.train, length=64, widths=widths)
    assert score.bytes == len(TEXT.encode()) - widths[ids[0]]
    assert score.bits_per_byte == pytest.approx(score.loss * score.tokens / math.log(2) / score.bytes)


def test_an_untrained_model_has_the_loss_of_guessing(tokens: Path) -> None:
    model = new_model(SHAPE).eval()
    with torch.no_grad():
        model.wte.weight.zero_()
    score = evaluate(model, SHAPE, TokenSet.open(tokens).validation, length=64)
    assert score.loss == pytest.approx(math.log(300), rel=1e-6)
    assert score.perplexity == pytest.approx(300, rel=1e-5)


def test_the_bytes_of_a_tokenizer_that_is_not_byte_level() -> None:
    vocab = {"<s>": 0, "▁the": 1, "é": 2, "<0xE2>": 3, "ing": 4}
    plain = Tokenizer(models.BPE(vocab, []))
    plain.add_special_tokens(["<s>"])
    plain.decoder = decoders.Metaspace()
    widths = token_widths(LoadedTokenizer(tokenizer=plain, end="<s>", sha256=""), 6)
    assert widths.tolist() == [0, 4, 2, 1, 3, 0]


def test_too_little_text_is_refused(model: torch.nn.Module, tokens: Path, tmp_path: Path) -> None:
    tokenizer = load_folder(tokens / "tokenizer")
    (tmp_path / "short.txt").write_text("the stoker feeds")
    short = tokenise(Data(path=str(tmp_path / "short.txt")), tokenizer, tmp_path / "scratch", ignore).train
    assert evaluate(model, SHAPE, short, length=64).tokens == short.tokens - 1
    with pytest.raises(UserError, match=r"not one sequence of 64.*Leave --sequences out"):
        evaluate(model, SHAPE, short, length=64, sequences=3)
    assert evaluate(model, SHAPE, short, length=2, sequences=1).tokens == 2


def test_a_loss_that_is_not_finite_fails(tokens: Path) -> None:
    model = new_model(SHAPE).eval()
    with torch.no_grad():
        model.wte.weight[:] = torch.nan
    with pytest.raises(RunFailed, match="the loss is nan"):
        evaluate(model, SHAPE, TokenSet.open(tokens).validation, length=64)
