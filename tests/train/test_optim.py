"""The learning rates that published runs logged, the decay groups, and the updates."""

import math
import subprocess
import sys
from copy import deepcopy

import pytest
import torch

from stoker.models.gpt2 import SPEC
from stoker.spec.derive import Derived, derive
from stoker.spec.run import Optim, RunSpec
from stoker.train.optim import learning_rate, optimizer, set_rate


def laid_out(optim: dict[str, object], steps: int) -> tuple[Optim, Derived]:
    spec = RunSpec.model_validate({"data": {"path": "x"}, "until": {"steps": steps}, "optim": optim})
    return spec.optim, derive(spec, samples=10**9)


def test_logarithmic_warm_up_gives_deepspeeds_logged_rate() -> None:
    optim, derived = laid_out({"lr": 6e-4, "warmup": 4000, "warmup_shape": "log", "schedule": "linear"}, 400_000)
    assert learning_rate(optim, derived, 133) == 0.0003537728376673855


@pytest.mark.parametrize("step", [1, 14, 1999, 2000])
def test_linear_warm_up_rises_by_equal_parts(step: int) -> None:
    optim, derived = laid_out({"lr": 4e-4, "warmup": 2000, "schedule": "linear"}, 28_125)
    assert learning_rate(optim, derived, step) == pytest.approx(4e-4 * step / 2000, rel=1e-15)


def test_cosine_gives_the_rate_that_the_fsdp_tutorial_logged() -> None:
    optim, derived = laid_out({"lr": 1e-4, "warmup": 16, "decay": 5000, "schedule": "cosine"}, 5000)
    assert learning_rate(optim, derived, 979) == pytest.approx(1e-4 / 2 * (math.cos(math.pi * 963 / 5000) + 1))
    assert f"{learning_rate(optim, derived, 979):.4e}" == "9.1123e-05"


@pytest.mark.parametrize("schedule", ["cosine", "linear", "wsd"])
def test_a_falling_schedule_ends_at_its_floor_and_stays_there(schedule: str) -> None:
    optim, derived = laid_out({"lr": 1.0, "warmup": "10%", "schedule": schedule, "floor": "10%"}, 1000)
    assert learning_rate(optim, derived, 100) == 1.0
    assert learning_rate(optim, derived, 1000) == pytest.approx(0.1)
    assert learning_rate(optim, derived, 5000) == pytest.approx(0.1)


def test_warm_up_stable_decay_stays_up_until_its_last_fifth() -> None:
    optim, derived = laid_out({"lr": 1.0, "warmup": 0, "schedule": "wsd"}, 1000)
    assert [learning_rate(optim, derived, step) for step in (1, 500, 800)] == [1, 1, 1]
    assert learning_rate(optim, derived, 900) == pytest.approx(0.5)


def test_a_constant_schedule_never_falls() -> None:
    optim, derived = laid_out({"lr": 0.5, "warmup": 0, "schedule": "constant"}, 10)
    assert {learning_rate(optim, derived, step) for step in range(1, 30)} == {0.5}


def test_matrices_and_embeddings_decay_and_biases_and_norms_do_not() -> None:
    spec = RunSpec.model_validate(
        {"data": {"path": "x"}, "until": {"steps": 1}, "model": {"layers": 1, "heads": 2, "width": 8, "vocab": 300}}
    )
    model = SPEC.build(spec.model)
    decayed, plain = optimizer(model.named_parameters(), spec.optim).param_groups
    names = {id(p): name for name, p in model.named_parameters()}
    assert {names[id(p)] for p in decayed["params"]} == {name for name in names.values() if _is_matrix(name)}
    assert (decayed["weight_decay"], plain["weight_decay"]) == (0.1, 0.0)
    assert all(isinstance(p, torch.nn.Parameter) for p in plain["params"])


def test_adamw_is_torchs_own_bit_for_bit() -> None:
    torch.manual_seed(0)
    ours, theirs = ([torch.nn.Parameter(p.clone()) for p in (torch.ones(5, 3), torch.ones(4))] for _ in range(2))
    adamw = optimizer(zip(("matrix", "vector"), ours, strict=True), Optim(lr=0.01, betas=(0.9, 0.95), weight_decay=0.1))
    groups = [{"params": [theirs[0]], "weight_decay": 0.1}, {"params": [theirs[1]], "weight_decay": 0.0}]
    reference = torch.optim.AdamW(groups, lr=0.01, betas=(0.9, 0.95), eps=Optim().eps, fused=True)
    for _ in range(20):
        for own, expected in zip(ours, theirs, strict=True):
            own.grad = torch.randn_like(own)
            expected.grad = own.grad.clone()
        adamw.step()
        reference.step()
    for own, expected in zip(ours, theirs, strict=True):
        assert torch.equal(own, expected)
        assert all(torch.equal(value, reference.state[expected][key]) for key, value in adamw.state[own].items())


@pytest.mark.parametrize("kind", ["adamw", "lamb"])
def test_each_is_a_torch_optimizer_whose_state_can_be_saved_and_loaded(kind: str) -> None:
    def made() -> tuple[torch.nn.Parameter, torch.optim.Optimizer]:
        p = torch.nn.Parameter(torch.ones(3, 2))
        return p, optimizer([("p", p)], Optim(kind=kind, lr=0.1))

    p, ours = made()
    assert isinstance(ours, torch.optim.Optimizer)
    calls: list[int] = []
    ours.register_step_post_hook(lambda *_: calls.append(1))
    p.grad = torch.full_like(p, 0.5)
    ours.step()
    ours.zero_grad()
    assert (calls, p.grad) == ([1], None)
    q, loaded = made()
    loaded.load_state_dict(deepcopy(ours.state_dict()))
    q.data.copy_(p.data)
    for parameter, stepped in ((p, ours), (q, loaded)):
        parameter.grad = torch.full_like(parameter, -0.25)
        stepped.step()
    assert torch.equal(p, q)
    assert {key: float(value.sum()) for key, value in loaded.state[q].items()} == {
        key: float(value.sum()) for key, value in ours.state[p].items()
    }


def test_a_step_without_compile_does_not_load_torchs_compiler() -> None:
    """It would take a second of every start and every restart."""
    lines = (
        "import sys, torch",
        "from stoker.models.build import new_model",
        "from stoker.spec.model import Model",
        "from stoker.spec.run import Optim",
        "from stoker.train.optim import optimizer",
        "for family in ('gpt2', 'llama', 'bert'):",
        "    model = new_model(Model(family=family, layers=1, heads=2, width=8, context=8, vocab=16))",
        "    sum(p.sum() for p in model.parameters()).backward()",
        "    optimizer(model.named_parameters(), Optim()).step()",
        "sys.exit('torch._dynamo' in sys.modules)",
    )
    subprocess.run([sys.executable, "-c", "\n".join(lines)], check=True)


def test_lamb_is_the_published_update() -> None:
    torch.manual_seed(0)
    matrix, vector = torch.nn.Parameter(torch.randn(5, 3)), torch.nn.Parameter(torch.randn(4))
    optim = Optim(kind="lamb", lr=0.01, betas=(0.9, 0.999), eps=1e-6, weight_decay=0.01)
    ours = optimizer([("matrix", matrix), ("vector", vector)], optim)
    plain = [matrix.detach().double(), vector.detach().double()]
    averages, squares = [0.0, 0.0], [0.0, 0.0]
    for step in range(1, 21):
        matrix.grad, vector.grad = torch.randn(5, 3), torch.randn(4)
        for i, (p, gradient, decay) in enumerate(zip(plain, (matrix.grad, vector.grad), (0.01, 0.0), strict=True)):
            g = gradient.double()
            averages[i] = 0.9 * averages[i] + 0.1 * g
            squares[i] = 0.999 * squares[i] + 0.001 * g * g
            update = averages[i] / (1 - 0.9**step) / ((squares[i] / (1 - 0.999**step)) ** 0.5 + 1e-6) + decay * p
            ratio = p.norm() / update.norm() if i == 0 else 1.0
            plain[i] = p - 0.02 * ratio * update
        set_rate(ours, 0.02)
        ours.step()
    for got, wanted in zip((matrix, vector), plain, strict=True):
        assert torch.allclose(got.double(), wanted, rtol=1e-5, atol=1e-6)


def test_lambs_state_exists_from_the_start_and_a_matrix_of_zeros_changes() -> None:
    matrix = torch.nn.Parameter(torch.zeros(2, 2))
    lamb = optimizer([("matrix", matrix)], Optim(kind="lamb", lr=0.1))
    assert {key: tensor.sum().item() for key, tensor in lamb.state[matrix].items()} == dict.fromkeys(
        ("step", "exp_avg", "exp_avg_sq"), 0.0
    )
    matrix.grad = torch.ones(2, 2)
    lamb.step()
    assert torch.allclose(matrix, torch.full((2, 2), -0.1))


def _is_matrix(name: str) -> bool:
    return name.endswith("weight") and "ln_" not in name
