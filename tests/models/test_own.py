"""A model of the user's own trains, resumes and generates like ours, and problems are reported before training."""

import sys
from pathlib import Path

import pytest
import torch

from stoker.models import model_spec, weights
from stoker.models.load import load_model
from stoker.rundir import RunDir
from stoker.spec.errors import UserError
from stoker.spec.model import Model
from tests.written import events_of

SHAPE = Model(family="mine:build", layers=1, width=16, context=32, vocab=99)
NET = """
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self, shape):
        super().__init__()
        self.embed = nn.Embedding(shape.vocab, shape.width)
        self.mix = nn.GRU(shape.width, shape.width, shape.layers, batch_first=True)
        self.drop = nn.Dropout(0.1)
        self.head = nn.Linear(shape.width, shape.vocab, bias=False)
        self.head.weight = self.embed.weight
        self.frozen = nn.Parameter(torch.ones(3), requires_grad=False)
        self.register_buffer("mean", torch.zeros(shape.width))
        self.register_buffer("table", torch.ones(shape.context), persistent=False)

    def forward(self, tokens):
        hidden, _ = self.mix(self.embed(tokens))
        if self.training:
            self.mean = 0.9 * self.mean + 0.1 * hidden.detach().mean((0, 1))
        return self.head(self.drop(hidden - self.mean))

def build(shape):
    return Net(shape)
"""


def test_every_tensor_of_its_state_is_kept_once_and_under_its_first_name(mine) -> None:
    model = model_spec(f"{mine(NET)}:build").build(SHAPE)
    kept = weights(model)
    assert "embed.weight" in kept
    assert "mean" in kept
    assert "frozen" in kept
    assert not {"head.weight", "table"} & set(kept)
    kept["embed.weight"].fill_(7)
    assert model.get_parameter("head.weight").eq(7).all()


def test_it_trains_and_its_size_is_counted(worker, mine) -> None:
    run = worker(
        "name=own", f"model.family={mine(NET)}:build", "until.steps=30", "optim.lr=1e-2", "log.parameters=true"
    )
    started = next(event for event in events_of(run) if event["kind"] == "started")
    vocab, width = run.spec().model.vocab, 32
    assert started["parameters"] == vocab * width + 2 * 2 * 3 * (width * width + width)  # two layers of three gates
    first, *_, last = run.metrics()
    assert last["loss"] < first["loss"] - 0.5
    assert "frozen" not in last["parameters"]
    assert next(event for event in events_of(run) if event["kind"] == "sample")["text"]


def test_a_resumed_run_is_bit_identical_including_buffers(worker, mine) -> None:
    overrides = [f"model.family={mine(NET)}:build", "optim.schedule=constant", "eval.every=2"]
    whole = worker("name=whole", *overrides, "until.steps=8")
    worker("name=parts", *overrides, "until.steps=4")
    parts = worker("name=parts", *overrides, "until.steps=8")
    assert losses(parts) == losses(whole)
    resumed, undisturbed = (load_model(run.path, device="cpu").model.state_dict() for run in (parts, whole))
    assert resumed["mean"].abs().sum() > 0
    assert all(torch.equal(resumed[name], tensor) for name, tensor in undisturbed.items())


def losses(run: RunDir) -> list[tuple[float, float | None]]:
    return [(record["loss"], record.get("val_loss")) for record in run.metrics()]


def test_its_weights_follow_from_the_seed_whichever_generator_draws_them(mine) -> None:
    module = mine(
        "import random\nimport numpy as np\nimport torch\nfrom torch import nn\n"
        "def build(shape):\n"
        "    model = nn.Embedding(shape.vocab, shape.vocab)\n"
        "    model.weight.data[0, 0], model.weight.data[0, 1] = random.random(), np.random.rand()\n"
        "    return model\n"
    )

    def drawn(seed: int) -> torch.Tensor:
        torch.manual_seed(seed)
        return model_spec(f"{module}:build").build(SHAPE).state_dict()["weight"]

    assert torch.equal(drawn(5), drawn(5))
    assert not drawn(5)[0].eq(drawn(6)[0]).any()


def test_code_that_does_not_fit_the_checkpoint_is_reported_in_one_line(worker, mine, tmp_path: Path) -> None:
    name = mine(NET)
    run = worker("name=own", f"model.family={name}:build", "until.steps=1")
    other = NET.replace("shape.width, shape.layers, batch_first", "shape.width, shape.layers + 1, batch_first")
    changed = mine(other)
    (tmp_path / f"{name}.py").write_text(f"from {changed} import build\n")
    del sys.modules[name]  # as in a new process
    worker("name=own", f"model.family={name}:build", "until.steps=2", code=2)
    assert "the checkpoint of step 1 does not fit the model" in run.exit().reason
    assert "--new" in run.exit().remedy


@pytest.mark.parametrize(
    ("body", "parts"),
    [
        ("return [1]", ["it returned a list", "torch.nn.Module"]),
        ("return None", ["it returned None"]),
        ("raise ValueError('no heads')", ["it fails: ValueError: no heads (", ".py, line 7)"]),
        ("return shape.colour", ["AttributeError", "stoker.spec.model.Model"]),
        ("return nn.ReLU()", ["nothing to train"]),
        ("return nn.Embedding(shape.vocab, 4).half()", ["its parameter weight is float16", "float32", "precision"]),
        ("return nn.LazyLinear(4)", ["its parameter weight has no values yet"]),
        (
            "return nn.Embedding(shape.vocab, 4)",
            ["a float32 tensor of shape [1, 1, 4] for tokens of shape [1, 1]", "of shape [1, 1, 99]: batch, tokens"],
        ),
        ("return Out(lambda x: x.argmax(-1))", ["an int64 tensor of shape [1, 1]"]),
        ("return Out(lambda x: (x, None))", ["a tuple for tokens"]),
        ("return Out(lambda x: {'logits': x})", ["a dict for tokens"]),
        ("return Out(lambda x: None)", ["returned None for tokens"]),
        ("return Out(lambda x: x.long())", ["an int64 tensor"]),
        ("return Out(lambda x: x[0])", ["a float32 tensor of shape [1, 99]"]),
        ("return Out(lambda x: x + (1 / (x.shape[1] - 1)))", ["fails on tokens of shape [1, 1]: ZeroDivisionError"]),
        (
            "return Out(lambda x: x + torch.ones(8, 1)[:x.shape[1]])",
            ["fails on tokens of shape [1, 32]", "model.context"],
        ),
    ],
)
def test_an_unusable_model_is_reported_in_one_line_before_training(mine, body: str, parts: list[str]) -> None:
    family = mine(f"import torch\nfrom torch import nn\n{OUT}\ndef build(shape):\n    {body}\n") + ":build"
    with pytest.raises(UserError) as error:
        model_spec(family).build(SHAPE)
    line = str(error.value)
    assert line.startswith(f"model.family names {family}, and ")
    assert [part for part in parts if part not in line] == [], line
    assert "\n" not in line


OUT = """class Out(nn.Embedding):
    def __init__(self, change): super().__init__(99, 99); self.change = change
    def forward(self, tokens): return self.change(super().forward(tokens))"""


def test_a_name_that_is_not_a_function_is_refused(mine) -> None:
    with pytest.raises(UserError, match="it is an int"):
        model_spec(f"{mine('build = 7')}:build")


def test_it_cannot_be_converted_to_transformers(mine) -> None:
    family = f"{mine(NET)}:build"
    for convert in (model_spec(family).to_hf, model_spec(family).from_hf):
        with pytest.raises(UserError, match=f"{family} is your own code"):
            convert({})


@pytest.mark.parametrize(("build", "trained"), [("nn.Embedding(99, 99)", True), ("nn.Embedding(99, 99).eval()", False)])
def test_the_trial_forward_pass_changes_nothing(mine, build: str, trained: bool) -> None:
    model = model_spec(f"{mine(f'from torch import nn{chr(10)}def build(shape): return {build}')}:build").build(SHAPE)
    assert model.training is trained
    assert all(p.grad is None for p in model.parameters())
