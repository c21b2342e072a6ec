"""A few lines from the model, so that a person can see what it has learnt."""

import torch
from torch import Tensor, nn

from stoker.spec.errors import RunFailed


@torch.no_grad()
def sample(model: nn.Module, *, start: int, tokens: int, context: int, temperature: float = 0.8) -> list[int]:
    """Draw `tokens` tokens after `start` with a fixed seed: the same model writes the same text."""
    generator = torch.Generator().manual_seed(0)
    device = next(model.parameters()).device
    ids: Tensor = torch.tensor([[start]], device=device)
    for _ in range(tokens):
        logits = model(ids[:, -context:])[0, -1].float().cpu()
        if not logits.isfinite().all():
            raise RunFailed("the trained model gives no numbers", remedy="Lower optim.lr and start again with --new")
        chosen = torch.multinomial(torch.softmax(logits / temperature, dim=0), 1, generator=generator)
        ids = torch.cat([ids, chosen.to(device)[None]], dim=1)
    drawn: list[int] = ids[0, 1:].tolist()
    return drawn
