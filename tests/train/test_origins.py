import json
import os
import random
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from transformers import GPT2Config, GPT2LMHeadModel

from stoker.inference.export import export
from stoker.models import weights
from stoker.models.load import load_model
from stoker.rundir import OriginRef, RunDir
from stoker.spec.errors import UserError
from stoker.train import origins

Worker = Callable[..., RunDir]
UNSHAPED = ["name=next", "until.steps=2", "checkpoint.first=true"]


@pytest.fixture
def big(worker: Worker) -> RunDir:
    return worker("name=big", "model.layers=4", "until.steps=2")


def tensors(run: RunDir | Path, step: int) -> dict[str, torch.Tensor]:
    return weights(load_model(run.path if isinstance(run, RunDir) else run, step=step, device="cpu").model)


def test_a_run_starts_from_the_weights_of_another_and_has_its_shape(worker: Worker, big: RunDir) -> None:
    run = worker(*UNSHAPED, f"init={big.path}", shaped=False)
    assert run.spec().model == big.spec().model
    theirs = tensors(big, 2)
    for name, tensor in tensors(run, 0).items():
        assert torch.equal(tensor, theirs[name]), name
    assert not torch.equal(tensors(run, 2)["wte.weight"], theirs["wte.weight"])


def test_a_resumed_run_does_not_need_its_initial_weights_again(worker: Worker, big: RunDir) -> None:
    overrides = ("name=next", f"init={big.path}")
    worker(*overrides, "until.steps=2", shaped=False)
    big.path.rename(big.path.with_name("gone"))
    run = worker(*overrides, "until.steps=4", shaped=False)
    assert [record["step"] for record in run.metrics()] == [1, 2, 3, 4]


def test_a_teacher_that_is_trained_further_and_pruned_is_kept_for_its_student(worker: Worker) -> None:
    live = ["name=live", "model.layers=4", "checkpoint.keep=1", "checkpoint.best=false"]
    worker(*live, "until.steps=2")
    overrides = ["name=next", "objective.teacher=live"]
    student = worker(*overrides, "until.steps=1")
    teacher = worker(*live, "until.steps=3")
    assert [saved.step for saved in teacher.saved()] == [3]
    assert student.origins()["teacher"].step == 2
    worker(*overrides, "until.steps=2")
    shutil.rmtree(teacher.path)
    worker(*overrides, "until.steps=3")
    assert [record["step"] for record in student.metrics()] == [1, 2, 3]


def test_damaged_initial_weights_are_refused_in_one_line(worker: Worker, big: RunDir) -> None:
    overrides = [*UNSHAPED, f"init={big.path}"]
    file = max(big.checkpoint(2).iterdir(), key=lambda file: file.stat().st_size)
    whole = file.read_bytes()
    harmed = bytearray(whole)
    harmed[len(harmed) // 2] ^= 1
    file.write_bytes(harmed)
    with pytest.raises(UserError, match=r"init\.path: the checkpoint .* is damaged"):
        worker(*overrides, shaped=False)
    file.write_bytes(whole)
    run = worker(*overrides, shaped=False)
    for saved in run.saved():  # so that it starts from scratch
        shutil.rmtree(saved.path)
    overrides.append("checkpoint.resume=0")
    held = run.origin_folder("init") / "checkpoints" / "step-000000002" / file.name
    held.unlink()
    held.write_bytes(harmed)
    assert "has changed since it was written" in worker(*overrides, "until.steps=3", shaped=False, code=2).exit().reason
    shutil.rmtree(run.origin_folder("init"))
    shutil.rmtree(big.path)
    assert "step 2, is gone" in worker(*overrides, "until.steps=3", shaped=False, code=2).exit().reason


def test_initial_weights_that_are_deleted_while_the_run_starts_are_reported(
    worker: Worker, big: RunDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    def delete(folder: Path, origin: OriginRef, _key: str) -> None:
        shutil.rmtree(RunDir(folder).checkpoint(origin.step))

    monkeypatch.setattr(origins, "_check_unchanged", delete)
    run = worker(*UNSHAPED, f"init={big.path}", shaped=False, code=2)
    assert "step 2, is gone" in run.exit().reason


@pytest.mark.parametrize(("chosen", "layers"), [([], [0, 3]), (["init.layers=[2,1]"], [2, 1])])
@pytest.mark.parametrize("form", ["run", "folder"])
def test_a_smaller_model_starts_from_some_of_the_layers(
    worker: Worker, big: RunDir, tmp_path: Path, form: str, chosen: list[str], layers: list[int]
) -> None:
    place = big.path
    if form == "folder":
        place = tmp_path / "model"
        export(load_model(big.path, device="cpu"), place)
    begun = tensors(worker(*UNSHAPED, f"init={place}", "model.layers=2", *chosen), 0)
    theirs = tensors(big, 2)
    for ours, layer in enumerate(layers):
        assert torch.equal(begun[f"h.{ours}.attn.c_attn.weight"], theirs[f"h.{layer}.attn.c_attn.weight"])
    for name in ("wte.weight", "wpe.weight", "ln_f.weight"):
        assert torch.equal(begun[name], theirs[name])


def test_frozen_positions_do_not_change_even_after_a_resume(worker: Worker, big: RunDir) -> None:
    overrides = ("name=next", f"init={big.path}", "model.layers=4", "init.freeze_positions=true")
    worker(*overrides, "until.steps=2")
    ours, theirs = tensors(worker(*overrides, "until.steps=3"), 3), tensors(big, 2)
    assert torch.equal(ours["wpe.weight"], theirs["wpe.weight"])
    assert not torch.equal(ours["wte.weight"], theirs["wte.weight"])


def test_a_model_of_transformers_with_odd_sizes_can_be_trained_further(
    worker: Worker, tokens: Path, tmp_path: Path
) -> None:
    vocab = json.loads((tokens / "index.json").read_text())["vocab"]
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    torch.manual_seed(seed)
    config = GPT2Config(n_layer=3, n_head=3, n_embd=60, n_inner=100, n_positions=33, vocab_size=vocab)
    theirs = GPT2LMHeadModel(config).eval()
    theirs.save_pretrained(tmp_path / "odd", max_shard_size="20KB")
    assert len(list((tmp_path / "odd").glob("*.safetensors"))) > 1
    run = worker(*UNSHAPED, f"init={tmp_path / 'odd'}", shaped=False)
    rows = torch.randint(vocab, (2, 33))
    ours = load_model(run.path, step=0, device="cpu").model
    with torch.no_grad():
        assert (ours(rows) - theirs(rows).logits).abs().max() < 1e-5


def test_weights_that_changed_since_the_run_was_created_are_refused(
    worker: Worker, big: RunDir, tmp_path: Path
) -> None:
    folder = tmp_path / "model"
    export(load_model(big.path, device="cpu"), folder)
    overrides = ("name=next", f"objective.teacher={folder}")
    worker(*overrides, "until.steps=1")
    file = folder / "model.safetensors"
    held = bytearray(file.read_bytes())
    held[-5] ^= 1
    file.write_bytes(bytes(held))
    run = worker(*overrides, "until.steps=2", code=2)
    assert "holds other weights than when this run was made" in run.exit().reason


@pytest.mark.parametrize(
    ("overrides", "parts"),
    [
        (["init=bog"], ["init.path: there is no run 'bog'", "Did you mean big?"]),
        (["init={big}", "model.width=64"], ["model.width is 64", "has 32", "Leave model out"]),
        (["init={big}", "model.layers=5"], ["of 4, and model.layers is 5"]),
        (["init={big}", "init.layers=[1,9]"], ["layers [1, 9] of 4"]),
        (["init.layers=[1]"], ["init", "it has no path"]),
        (["objective.kind=distill"], ["needs a teacher", "objective.teacher"]),
        (["objective.teacher={big}", "objective.alpha_ce=0"], ["the teacher has no weight in the loss"]),
        (["objective.teacher={big}", "objective.kind=causal"], ["kind causal has no teacher"]),
        (["objective.teacher={big}", "model.vocab=384"], ["objective.teacher", "model.vocab is 384"]),
        (["objective.teacher={big}", "model.context=64", "batch.length=64"], ["reads 32 tokens at most"]),
    ],
)
def test_weights_that_do_not_fit_are_refused_in_one_line(
    worker: Worker, big: RunDir, overrides: list[str], parts: list[str]
) -> None:
    with pytest.raises(UserError) as error:
        worker("name=new", "until.steps=1", *(override.format(big=big.path) for override in overrides))
    line = str(error.value)
    assert [part for part in parts if part not in line] == [], line
    assert not (big.path.parent / "new").exists()


def test_a_teacher_with_another_vocabulary_is_refused(worker: Worker, big: RunDir, tmp_path: Path) -> None:
    (tmp_path / "other.txt").write_text("zebras quarrel with yaks. " * 400)
    data = [f"data={tmp_path / 'other.txt'}", "data.tokenizer.train=300"]
    with pytest.raises(UserError, match=r"objective.teacher .* has another vocabulary .* Set data.tokenizer to"):
        worker("name=new", "until.steps=1", *data, f"objective.teacher={big.path}")


MEASURE = """
import os, sys, threading
from pathlib import Path
import torch
from stoker.models.load import load_model

def held():
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("RssAnon")).split()[1]) << 10

most, done = 0, threading.Event()
def watch():
    global most
    while not done.wait(0.002):
        most = max(most, held())
load_model(Path(sys.argv[2]), device="cpu")  # memory that the first load allocates once
before = held()
watcher = threading.Thread(target=watch)
watcher.start()
model = load_model(Path(sys.argv[1]), device="cpu").model
done.set()
watcher.join()
print(most - before - sum(p.nbytes for p in model.parameters()))
"""


@pytest.mark.parametrize("form", ["safetensors", pytest.param("bin", marks=pytest.mark.soak)])
def test_sharded_weights_are_read_with_one_file_in_memory_at_a_time(tmp_path: Path, form: str) -> None:
    file_bytes = 20_000_000
    for name, layers in (("large", 12), ("small", 1)):
        config = GPT2Config(n_layer=layers, n_head=8, n_embd=512, n_positions=64, vocab_size=1000)
        (tmp_path / name).mkdir()
        model = GPT2LMHeadModel(config)
        model.save_pretrained(tmp_path / name, max_shard_size=file_bytes)
        if form == "bin":
            as_bin(tmp_path / name)
    assert len(list((tmp_path / "large").glob(f"*.{form}"))) > 5
    command = [sys.executable, "-c", MEASURE, str(tmp_path / "large"), str(tmp_path / "small")]
    # Freed memory returns to the system at once: the memory in use is measured, not the pages that malloc keeps.
    env = os.environ | {"OMP_NUM_THREADS": "1", "MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "0"}
    measured = subprocess.run(command, capture_output=True, text=True, check=True, env=env)
    assert int(measured.stdout) < 2 * file_bytes, f"{int(measured.stdout):,} bytes beside the model's own"


def as_bin(folder: Path) -> None:
    for file in folder.glob("*.safetensors"):
        torch.save(load_file(file), file.with_name(bin_name(file.name)))
        file.unlink()
    for index in folder.glob("*.index.json"):
        record = json.loads(index.read_text())
        record["weight_map"] = {name: bin_name(file) for name, file in record["weight_map"].items()}
        (folder / "pytorch_model.bin.index.json").write_text(json.dumps(record))
        index.unlink()


def bin_name(file: str) -> str:
    return file.replace("model", "pytorch_model").replace(".safetensors", ".bin")
