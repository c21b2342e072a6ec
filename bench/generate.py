"""Compares generation with transformers: same weights, fp32, greedy, with a cache, in one process, taking turns.

Both generate 200 tokens; Stoker also decodes them to text. The tokens must be the same. A pair of turns gives one
ratio; the table shows medians.

    python bench/generate.py [--pairs 5]
"""

import argparse
import statistics
import sys
import sysconfig
import time
from collections.abc import Callable
from pathlib import Path

import torch
from transformers import GPT2Config, GPT2LMHeadModel

from stoker.data.tokenizer import LoadedTokenizer, train
from stoker.models.build import new_model
from stoker.models.generate import Settings, generate
from stoker.models.gpt2 import SPEC
from stoker.spec.model import Model

SHAPES = {"gpt2-demo": (4, 4, 256), "6 × 384": (6, 6, 384)}  # layers, heads, width
VOCAB = 8000
CONTEXT = 256
PROMPT = 16  # tokens
NEW = 200
SETTINGS = Settings(tokens=NEW, temperature=0, past_end=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=5)
    args = parser.parse_args()
    sources = [path.read_text(errors="ignore") for path in sorted(Path(sysconfig.get_path("stdlib")).glob("*.py"))]
    tokenizer = train(VOCAB, iter(sources))
    print(f"{'model':<12}{'batch':>6}{'stoker tok/s':>14}{'HF tok/s':>12}{'ratio':>8}   ratios of the pairs")
    for name, (layers, heads, width) in SHAPES.items():
        shape = Model(layers=layers, heads=heads, width=width, context=CONTEXT, vocab=VOCAB, init_std=0.05)
        for batch in (1, 8):
            prompts = some_prompts(tokenizer, sources, batch)
            pairs = compare(shape, tokenizer, prompts, pairs=args.pairs)
            ours, theirs = (batch * NEW / statistics.median(column) for column in zip(*pairs, strict=True))
            ratios = [b / a for a, b in pairs]
            shown = " ".join(f"{ratio:.2f}" for ratio in ratios)
            row = f"{name:<12}{batch:>6}{ours:>14,.0f}{theirs:>12,.0f}{statistics.median(ratios):>8.2f}   {shown}"
            print(row, flush=True)


def compare(shape: Model, tokenizer: LoadedTokenizer, prompts: list[str], *, pairs: int) -> list[tuple[float, float]]:
    """Seconds of each side, per turn."""
    torch.manual_seed(0)
    model = new_model(shape).eval()
    config = GPT2Config(
        n_layer=shape.layers, n_head=shape.heads, n_embd=shape.width, n_positions=CONTEXT, vocab_size=VOCAB,
        eos_token_id=None, bos_token_id=None, pad_token_id=0,
    )  # fmt: skip
    reference = GPT2LMHeadModel(config).eval()
    reference.load_state_dict(SPEC.to_hf(model.state_dict()), strict=False)
    prompt_ids = torch.tensor([tokenizer.tokenizer.encode(prompt).ids for prompt in prompts])

    def ours() -> list[list[int]]:
        pieces = generate(model, shape, tokenizer.tokenizer, tokenizer.end_id, prompts, SETTINGS)
        endings = {piece.row: piece.ending.ids for piece in pieces if piece.ending}
        return [endings[row] for row in sorted(endings)]

    def theirs() -> list[list[int]]:
        tokens: list[list[int]] = reference.generate(
            prompt_ids, attention_mask=torch.ones_like(prompt_ids), max_new_tokens=NEW, do_sample=False, use_cache=True
        )[:, PROMPT:].tolist()
        return tokens

    if ours() != theirs():  # the first turn of each is also its warm-up
        sys.exit("Stoker and transformers generate different tokens")
    return [(seconds(ours), seconds(theirs)) for _ in range(pairs)]


def seconds(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def some_prompts(tokenizer: LoadedTokenizer, sources: list[str], number: int) -> list[str]:
    """Prompts of equal length in tokens, because transformers would pad them otherwise."""
    prompts: list[str] = []
    for source in sources:
        text = tokenizer.tokenizer.decode(tokenizer.tokenizer.encode(source[:400]).ids[:PROMPT])
        if len(tokenizer.tokenizer.encode(text).ids) == PROMPT:
            prompts.append(text)
    return prompts[:number]


if __name__ == "__main__":
    main()
