import pytest
import torch

from stoker.models.layers import plain_attention

LENGTHS = torch.tensor([40, 7])


@pytest.mark.parametrize("real", [None, (torch.arange(40) < LENGTHS[:, None])[:, None, None]], ids=["causal", "padded"])
@pytest.mark.parametrize("keys", [6, 2, 1], ids=["each its own", "shared by three", "shared by all"])
def test_plain_attention_is_the_references_forward_and_backward(keys: int, real: torch.Tensor | None) -> None:
    generator = torch.Generator().manual_seed(4)
    ours = [torch.randn(2, n, 40, 16, generator=generator, requires_grad=True) for n in (6, keys, keys)]
    theirs = [tensor.detach().clone().requires_grad_() for tensor in ours]
    got = plain_attention(*ours, real, scale=0.3, dropout=0.0)
    wanted = torch.nn.functional.scaled_dot_product_attention(
        *theirs, real, is_causal=real is None, scale=0.3, enable_gqa=True
    )
    assert torch.allclose(got, wanted, rtol=1e-5, atol=1e-6)
    got.square().sum().backward()
    wanted.square().sum().backward()
    assert all(torch.allclose(a.grad, b.grad, rtol=1e-4, atol=1e-5) for a, b in zip(ours, theirs, strict=True))
