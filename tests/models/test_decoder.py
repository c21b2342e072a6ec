"""A decoder gives, token by token, the logits that the model gives for the whole row."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from stoker.models.build import new_model
from stoker.models.decoder import Decoder, RereadingDecoder
from stoker.models.gpt2 import GPT2, GPT2Decoder
from stoker.models.llama import LlamaDecoder
from stoker.spec.model import Model

pytestmark = pytest.mark.usefixtures("one_thread")

SHAPE = Model(layers=3, heads=3, width=39, context=24, vocab=101, init_std=0.3)
LLAMA = Model(
    family="llama", layers=3, heads=4, kv_heads=2, width=48, context=24, vocab=101, init_std=0.3, rope_theta=50.0
)
SHAPES = {
    "plain": SHAPE,
    "scaled": SHAPE.model_copy(update={"scale_attention_by_layer": True}),
    "llama": LLAMA,
    "llama tied": LLAMA.model_copy(update={"tied": True, "kv_heads": 4}),
}


def own_decoder(model: nn.Module, rows: int, length: int) -> Decoder:
    return (GPT2Decoder if isinstance(model, GPT2) else LlamaDecoder)(model, rows, length)


DECODERS: list[Callable[[nn.Module, int, int], Decoder]] = [own_decoder, RereadingDecoder]


@pytest.fixture(params=SHAPES)
def model(request: pytest.FixtureRequest) -> nn.Module:
    return new_model(SHAPES[request.param], seed=1).eval()


def tokens(*shape: int, seed: int = 2) -> Tensor:
    return torch.randint(101, shape, generator=torch.Generator().manual_seed(seed))


@torch.no_grad()
def assert_same_logits(model: nn.Module, rows: list[Tensor], logits_BV: Tensor) -> None:
    for row, logits_V in zip(rows, logits_BV, strict=True):
        assert torch.allclose(model(row[None])[0, -1], logits_V, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("make", DECODERS)
@pytest.mark.parametrize("batch", [1, 4])
def test_rows_of_one_length(model: nn.Module, make: Callable[..., Decoder], batch: int) -> None:
    text = tokens(batch, 24)
    decoder = make(model, batch, 24)
    decoder.read(range(batch), text[:, :7])
    for i in range(7, 24):
        assert_same_logits(model, list(text[:, : i + 1]), decoder.step(text[:, i]))


@pytest.mark.parametrize("make", DECODERS)
def test_rows_of_different_lengths_one_of_them_empty(model: nn.Module, make: Callable[..., Decoder]) -> None:
    texts = [tokens(length, seed=length) for length in (15, 10, 20, 10)]
    decoder = make(model, 4, 24)
    for row, text in enumerate(texts):
        decoder.read([row], text[None, :-10])
    for i in range(-10, 0):
        logits = decoder.step(torch.stack([text[i] for text in texts]))
        assert_same_logits(model, [text[: len(text) + i + 1] for text in texts], logits)


@pytest.mark.parametrize("make", DECODERS)
def test_rows_can_be_replaced_and_dropped(model: nn.Module, make: Callable[..., Decoder]) -> None:
    texts = list(tokens(4, 12))
    decoder = make(model, 4, 24)
    decoder.read(range(4), torch.stack(texts)[:, :11])
    decoder.step(torch.stack(texts)[:, 11])
    texts[2] = tokens(5, seed=9)
    decoder.read([2], texts[2][None])
    decoder.keep([1, 2])
    following = tokens(2, 3, seed=5)
    rows = [texts[1], texts[2]]
    for i in range(3):
        rows = [torch.cat([row, new[i : i + 1]]) for row, new in zip(rows, following, strict=True)]
        assert_same_logits(model, rows, decoder.step(following[:, i]))


def test_a_decoder_leaves_the_model_ready_to_train(model: nn.Module) -> None:
    text = tokens(2, 9)
    wanted = torch.autograd.grad(model(text).sum(), list(model.parameters()))
    decoder = own_decoder(model, 2, 24)
    decoder.read([0, 1], text)
    decoder.step(text[:, 0])
    got = torch.autograd.grad(model(text).sum(), list(model.parameters()))
    assert all(torch.equal(a, b) for a, b in zip(got, wanted, strict=True))
