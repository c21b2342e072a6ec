import random
import runpy
import statistics
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

from stoker.models import model_spec
from stoker.observe.audit import audit
from stoker.rundir import RunDir
from stoker.spec.errors import UserError
from stoker.spec.load import load
from stoker.spec.model import Model
from stoker.spec.run import Objective as Settings
from stoker.train.batches import held_out
from stoker.train.objectives import losses
from stoker.train.objectives.causal import Causal
from stoker.train.objectives.distill import Distill

Worker = Callable[..., RunDir]
SHAPE = Model(layers=2, heads=2, width=32, context=16, vocab=97)


@pytest.fixture
def models() -> tuple[torch.nn.Module, torch.nn.Module]:
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    torch.manual_seed(seed)
    build = model_spec("gpt2").build
    teacher = build(SHAPE.model_copy(update={"layers": 3, "width": 48, "init_std": 0.3})).eval()
    student = build(SHAPE.model_copy(update={"init_std": 0.3})).eval()
    return student, teacher.requires_grad_(False)


def by_hand(student_NV, teacher_NV, goals_N, settings: Settings) -> dict[str, torch.Tensor]:
    """The formula as it is written, one position at a time."""
    parts = {"loss_ce": 0.0, "loss_clm": 0.0, "loss_mse": 0.0}
    for s_V, t_V, goal in zip(student_NV, teacher_NV, goals_N, strict=True):
        p, q = (t_V / settings.temperature).softmax(0), (s_V / settings.temperature).softmax(0)
        parts["loss_ce"] += settings.temperature**2 * (p * (p.log() - q.log())).sum()
        parts["loss_clm"] += -s_V.softmax(0)[goal].log()
        parts["loss_mse"] += (s_V - t_V).square().sum()
    return {name: part / len(goals_N) for name, part in parts.items()}


@pytest.mark.parametrize("temperature", [1.0, 2.0, 5.0])
def test_the_loss_and_its_gradients_are_those_of_the_formula(models, temperature: float) -> None:
    student, teacher = models
    settings = Settings(teacher="x", temperature=temperature, alpha_ce=5.0, alpha_clm=1.0, alpha_mse=0.3)
    objective = Distill(Causal(), teacher, settings)
    assert objective.parts == ("loss_ce", "loss_clm", "loss_mse")
    rows = torch.randint(SHAPE.vocab, (5, 17))
    batch = replace(held_out(rows), samples=held_out(rows).samples[:4])  # the last row carries no weight
    (inputs,) = objective.cut(batch, number=1, size=5)
    sums, targets = objective.loss(student, *inputs), objective.count(batch).targets
    assert targets == (64, 64, 64)
    parts = losses(objective, sums.tolist(), targets)

    live = rows[:4]
    logits = (student(live[:, :-1]).flatten(0, 1), teacher(live[:, :-1]).flatten(0, 1))
    wanted = by_hand(*logits, live[:, 1:].flatten(), settings)
    for name, value in wanted.items():
        assert parts[name] == pytest.approx(float(value), rel=1e-6), name
    whole = 5.0 * wanted["loss_ce"] + wanted["loss_clm"] + 0.3 * wanted["loss_mse"]
    assert parts["loss"] == pytest.approx(float(whole), rel=1e-6)

    weighted = sum(w * part / n for w, part, n in zip(objective.weights, sums, targets, strict=True))
    ours = torch.autograd.grad(weighted, list(student.parameters()))
    theirs = torch.autograd.grad(whole, list(student.parameters()))
    for gradient, expected in zip(ours, theirs, strict=True):
        assert (gradient - expected).abs().max() <= 1e-5 * expected.abs().max()


def test_a_student_that_is_its_teacher_has_nothing_to_learn_from_it(models) -> None:
    _, teacher = models
    objective = Distill(Causal(), teacher, Settings(teacher="x", alpha_mse=1.0))
    (inputs,) = objective.cut(held_out(torch.randint(SHAPE.vocab, (2, 17))), number=1, size=2)
    divergence, _, difference = objective.loss(teacher, *inputs).tolist()
    assert divergence == pytest.approx(0, abs=1e-5)
    assert difference == 0


def test_a_distillation_logs_every_part_and_its_held_out_loss_is_the_plain_one(worker: Worker) -> None:
    big = worker("name=big", "until.steps=4", "model.width=48")
    overrides = [f"objective.teacher={big.path}", "objective.alpha_mse=0.01", "eval.every=2"]
    run = worker("name=small", "until.steps=4", *overrides)
    for record in run.metrics():
        parts = 5 * record["loss_ce"] + record["loss_clm"] + 0.01 * record["loss_mse"]
        assert record["loss"] == pytest.approx(parts, rel=1e-6)
    assert abs(run.metrics()[-1]["val_loss"] - run.metrics()[-1]["loss_clm"]) < 0.5
    assert run.origins()["teacher"].step == 4
    assert audit(run).ok


def test_an_interrupted_distillation_resumes_bit_for_bit(worker: Worker) -> None:
    big = worker("name=big", "until.steps=3")
    overrides = [f"objective.teacher={big.path}", "model.dropout=0.1", "until.steps=6"]
    whole = worker("name=whole", *overrides)
    broken = worker("name=broken", *overrides, "until.steps=3", "optim.horizon=6")
    worker("name=broken", *overrides, "optim.horizon=6")
    wanted = [record["loss"] for record in whole.metrics()]
    assert [record["loss"] for record in broken.metrics()] == wanted


@pytest.mark.soak
def test_a_compiled_distillation_gives_the_losses_of_an_uncompiled_one(worker: Worker) -> None:
    big = worker("name=big", "until.steps=2")
    overrides = [f"objective.teacher={big.path}", "until.steps=4"]
    plain_run, compiled = worker("name=a", *overrides, "compile=false"), worker("name=b", *overrides, "compile=true")
    for expected, record in zip(plain_run.metrics(), compiled.metrics(), strict=True):
        assert record["loss"] == pytest.approx(expected["loss"], rel=1e-4)


def test_kl_is_computed_in_fp32_in_a_bf16_run(models) -> None:
    student, teacher = models
    rows = torch.randint(SHAPE.vocab, (2, 17))
    objective = Distill(Causal(), teacher, Settings(teacher="x"))
    (inputs,) = objective.cut(held_out(rows), number=1, size=2)
    exact = objective.loss(student, *inputs)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        rounded = objective.loss(student, *inputs)
    assert rounded.dtype == torch.float32
    assert torch.allclose(rounded[:2], exact[:2], rtol=0.1)


def test_the_reference_for_kl_is_torchs_own(models) -> None:
    student, teacher = models
    rows = torch.randint(SHAPE.vocab, (3, 17))
    objective = Distill(Causal(), teacher, Settings(teacher="x", temperature=2.0))
    (inputs,) = objective.cut(held_out(rows), number=1, size=3)
    ours = float(objective.loss(student, *inputs)[0]) / 48
    s, t = (model(rows[:, :-1]).flatten(0, 1) / 2 for model in (student, teacher))
    wanted = 4 * F.kl_div(s.log_softmax(1), t.softmax(1), reduction="batchmean")
    assert ours == pytest.approx(float(wanted), rel=1e-6)


def test_the_presets_for_students_have_the_published_sizes() -> None:
    overrides = ["objective.teacher=.", "data=."]
    half, small = (load(None, [f"base={name}", *overrides]).training for name in ("distilgpt2", "distilgpt2-small"))
    assert (half.model.layers, half.model.heads, half.model.width) == (6, 12, 768)
    assert (small.model.layers, small.model.heads, small.model.width) == (4, 6, 384)
    assert half.init.blocks(12, 6) == [0, 2, 4, 7, 9, 11]
    assert Path(str(half.objective.teacher)).is_absolute()


@pytest.mark.parametrize(
    ("family", "parts"),
    [
        (["model.family=llama", "model.kv_heads=1"], ("loss_ce", "loss_clm", "loss_mse")),
        (["model.family=bert"], ("loss_ce", "loss_mlm", "loss_nsp", "loss_mse")),
    ],
    ids=["llama", "bert"],
)
def test_other_families_teach_and_learn_too(worker: Worker, pairs: Path, family: list[str], parts: tuple[str]) -> None:
    overrides = [*family, "until.steps=3", *([f"data={pairs}"] if "bert" in family[0] else [])]
    big = worker("name=big", *overrides, "model.layers=4")
    run = worker("name=small", *overrides, f"objective.teacher={big.path}", f"init={big.path}")
    assert run.spec().model.layers == 2
    first = run.metrics()[0]
    assert set(parts) <= set(first)
    assert first["loss_ce"] > 0
    plain = first["loss_clm"] if "loss_clm" in first else first["loss_mlm"] + first["loss_nsp"]
    assert first["loss"] == pytest.approx(5 * first["loss_ce"] + plain, rel=1e-6)
    assert audit(run).ok


def test_a_teacher_of_another_kind_is_refused(worker: Worker, pairs: Path) -> None:
    big = worker("name=big", "until.steps=1")
    with pytest.raises(
        UserError, match=r"objective.teacher .* predicts the next token, and a bert predicts masked words"
    ):
        worker("name=new", "until.steps=1", "model.family=bert", f"data={pairs}", f"objective.teacher={big.path}")


@pytest.mark.soak
def test_a_student_with_a_teacher_is_better_than_one_alone_by_more_than_the_seed_changes(tmp_path: Path) -> None:
    bench = runpy.run_path(str(Path(__file__).parents[3] / "bench" / "distill.py"))
    bench["held_out_loss"](tmp_path, "teacher", [*bench["TEACHER"], "until.steps=600"])
    settings = ["objective.temperature=1", "objective.alpha_ce=1"]
    alone, taught = bench["gains"](tmp_path, seeds=3, steps=400, how=settings)
    gain = statistics.mean(alone) - statistics.mean(taught)
    print(f"alone {alone}, taught {taught}, gain {gain:.4f}")
    assert gain > max(bench["spread"](alone), bench["spread"](taught))
