"""A model, a text source and a callback: mine:build, mine:source and mine:PrintLoss in run.yaml."""

import random
from collections.abc import Iterator
from typing import Any

from torch import Tensor, nn

import stoker
from stoker.spec.model import Model


class Memory(nn.Module):
    """Maps tokens [batch, time] to logits [batch, time, vocabulary], as every model must."""

    def __init__(self, shape: Model) -> None:
        super().__init__()
        self.embed = nn.Embedding(shape.vocab, shape.width)
        self.layers = nn.GRU(shape.width, shape.width, shape.layers, batch_first=True)
        self.head = nn.Linear(shape.width, shape.vocab, bias=False)
        self.head.weight = self.embed.weight  # shared weights are saved and trained once
        nn.init.normal_(self.embed.weight, std=shape.init_std)

    def forward(self, tokens: Tensor) -> Tensor:
        hidden, _ = self.layers(self.embed(tokens))
        return self.head(hidden)


def build(shape: Model) -> nn.Module:
    return Memory(shape)


def source() -> Iterator[str]:
    draw = random.Random(0)
    for _ in range(5000):
        a, b = draw.randrange(100), draw.randrange(100)
        yield f"{a} and {b} make {a + b}."


class PrintLoss(stoker.Callback):
    def step(self, record: dict[str, Any]) -> None:
        print(f"step {record['step']}: loss {record['loss']:.3f}")

    def ended(self, state: str, step: int, reason: str) -> None:
        print(f"{state} after {step} steps: {reason}")
