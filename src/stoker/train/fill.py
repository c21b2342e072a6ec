"""The words that a masked model puts in the place of [MASK]."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from tokenizers import Tokenizer

from stoker.data.wordpiece import INNER, MASK, words_of
from stoker.spec.errors import UserError
from stoker.train.load import LoadedModel
from stoker.train.models.bert import Bert

LIKELIEST = 5


@dataclass(frozen=True, kw_only=True, slots=True)
class Filled:
    prompt: str
    text: str
    """The prompt with the likeliest word in each place."""
    choices: list[list[tuple[str, float]]]
    """The likeliest words of each place, with their probabilities."""


def fill(loaded: LoadedModel, tokenizer: Tokenizer, prompts: Sequence[str]) -> list[Filled]:
    return [_fill(loaded, tokenizer, prompt) for prompt in prompts]


@torch.inference_mode()
def _fill(loaded: LoadedModel, tokenizer: Tokenizer, prompt: str) -> Filled:
    model, words = loaded.model, words_of(tokenizer, loaded.origin)
    assert isinstance(model, Bert)
    ids = [words.begin, *tokenizer.encode(prompt, add_special_tokens=False).ids, words.separator]
    places = [place for place, id in enumerate(ids) if id == words.mask]
    if not places:
        raise UserError(
            f"there is no {MASK} in the prompt '{prompt[:60]}', and this model fills in masked words alone",
            remedy=f'Put one where a word is missing, such as "the stoker {MASK} the fire"',
        )
    if len(ids) > loaded.shape.context:
        raise UserError(
            f"a prompt has {len(ids)} tokens, and the model reads {loaded.shape.context} at most",
            remedy="Give a shorter one",
        )
    logits_TV = model.everywhere(torch.tensor([ids], device=next(model.parameters()).device))[0][0]
    shares_MV = torch.softmax(logits_TV[places][:, : len(words.special)].float(), dim=-1)
    best = shares_MV.topk(min(LIKELIEST, shares_MV.shape[1]))
    choices = [
        [(tokenizer.id_to_token(id) or str(id), share) for id, share in zip(row, shares, strict=True)]
        for row, shares in zip(best.indices.tolist(), best.values.tolist(), strict=True)
    ]
    return Filled(prompt=prompt, text=_filled(prompt, [row[0][0] for row in choices]), choices=choices)


def _filled(prompt: str, words: list[str]) -> str:
    text, *rest = prompt.split(MASK)
    for word, after in zip(words, rest, strict=False):
        text = text.rstrip() + word.removeprefix(INNER) if word.startswith(INNER) else text + word
        text += after
    return text
