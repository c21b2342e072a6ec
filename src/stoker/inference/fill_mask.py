"""Fills in [MASK] with a masked model."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from tokenizers import Tokenizer

from stoker.data.wordpiece import INNER, MASK, masking_vocabulary
from stoker.models.bert import Bert
from stoker.models.load import LoadedModel
from stoker.spec.errors import UserError

CHOICES = 5


@dataclass(frozen=True, kw_only=True, slots=True)
class Filled:
    prompt: str
    text: str
    """The prompt with the most likely word at each mask."""
    choices: list[list[tuple[str, float]]]
    """The most likely words at each mask, with their probabilities."""


def fill(loaded: LoadedModel, tokenizer: Tokenizer, prompts: Sequence[str]) -> list[Filled]:
    return [_fill(loaded, tokenizer, prompt) for prompt in prompts]


@torch.inference_mode()
def _fill(loaded: LoadedModel, tokenizer: Tokenizer, prompt: str) -> Filled:
    model, vocabulary = loaded.model, masking_vocabulary(tokenizer, loaded.origin)
    assert isinstance(model, Bert)
    ids = [vocabulary.begin, *tokenizer.encode(prompt, add_special_tokens=False).ids, vocabulary.separator]
    masks = [position for position, id in enumerate(ids) if id == vocabulary.mask]
    if not masks:
        raise UserError(
            f"there is no {MASK} in the prompt '{prompt[:60]}', and this model only fills in masked words",
            remedy=f'Put one where a word is missing, such as "the stoker {MASK} the fire"',
        )
    if len(ids) > loaded.shape.context:
        raise UserError(
            f"a prompt has {len(ids)} tokens, and the model reads {loaded.shape.context} at most",
            remedy="Give a shorter one",
        )
    logits_TV = model.everywhere(torch.tensor([ids], device=next(model.parameters()).device))[0][0]
    probs_MV = torch.softmax(logits_TV[masks][:, : len(vocabulary.special)].float(), dim=-1)
    best = probs_MV.topk(min(CHOICES, probs_MV.shape[1]))
    choices = [
        [(tokenizer.id_to_token(id) or str(id), prob) for id, prob in zip(row, probs, strict=True)]
        for row, probs in zip(best.indices.tolist(), best.values.tolist(), strict=True)
    ]
    return Filled(prompt=prompt, text=_filled(prompt, [row[0][0] for row in choices]), choices=choices)


def _filled(prompt: str, tokens: list[str]) -> str:
    text, *rest = prompt.split(MASK)
    for token, after in zip(tokens, rest, strict=False):
        text = text.rstrip() + token.removeprefix(INNER) if token.startswith(INNER) else text + token
        text += after
    return text
