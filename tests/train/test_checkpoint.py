"""Checkpoints are kept as configured, are complete or absent, and survive damage to the newest one."""

import hashlib
import json
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from stoker.rundir import RunDir, events
from stoker.spec.errors import UserError
from stoker.spec.run import Checkpoint
from stoker.train.checkpoint import Checkpoints
from stoker.train.process_group import Ranks
from tests.written import events_of

ME = Ranks(rank=0, local_rank=0, world=1, attempt=1)
OVERRIDES = [
    "model.layers=2", "model.heads=2", "model.width=64", "model.context=64", "batch.sequences=4", "batch.length=64",
    "precision=fp32", "log.every=1", "eval.every=0", "optim.horizon=12", "optim.warmup=2", "on.workers=1",
]  # fmt: skip
ENOUGH = """
import os, signal
import stoker

class Enough(stoker.Callback):
    saves = 0

    def saved(self, step, folder):
        self.saves += 1
        if self.saves == 3:
            os.kill(os.getpid(), signal.SIGTERM)
"""


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    run = RunDir(tmp_path / "run")
    run.checkpoints.mkdir(parents=True)
    return run


@pytest.fixture
def opened(run: RunDir, alone: None) -> Iterator[Callable[..., Checkpoints]]:  # noqa: ARG001 (it needs the process group)
    made: list[Checkpoints] = []

    def open_with(**plan: object) -> Checkpoints:
        made.append(Checkpoints(run, ME, Checkpoint.model_validate(plan)))
        return made[-1]

    yield open_with
    for checkpoints in made:
        checkpoints.close()


def save(checkpoints: Checkpoints, *steps: int, best: int | None = None) -> None:
    for step in steps:
        checkpoints.save(step, {"model": tensor(step)}, {"progress": {"best_step": best}})
        assert checkpoints.finish_save(wait=True) is None


def tensor(step: int) -> dict[str, torch.Tensor]:
    return {"w": torch.arange(100.0) + step}


def load(checkpoints: Checkpoints) -> int | None:
    """The step it resumes from; the tensors must be those of that step."""
    tensors = {"model": tensor(-1)}
    saved = checkpoints.find()
    if saved:
        checkpoints.read(saved, tensors)
    assert torch.equal(tensors["model"]["w"], tensor(saved.step if saved else -1)["w"])
    return saved.step if saved else None


def steps(run: RunDir) -> list[int]:
    return [saved.step for saved in run.saved()]


@pytest.mark.parametrize(
    ("every", "due"),
    [
        (5, [*range(5, 131, 5)]),
        ([[2, 10], [10, 100]], [2, 4, 6, 8, *range(10, 131, 10)]),
        ([[3, 7], [10, 20], [50, 100]], [3, 6, 10, 20, 50, 100]),
        ("10m", []),
        ("auto", []),
    ],
)
def test_a_schedule_saves_exactly_its_steps_and_its_last_stage_continues(opened, every: object, due: list[int]) -> None:
    checkpoints = opened(every=every)
    assert [step for step in range(1, 131) if checkpoints.due(step)] == due


def test_the_newest_are_kept_and_every_mth_and_the_first_and_the_best(run: RunDir, opened) -> None:
    save(opened(every=5, keep=2, keep_every=20, first=True), *range(0, 61, 5), best=15)
    assert steps(run) == [0, 15, 20, 40, 55, 60]
    assert sorted(path.name for path in run.checkpoints.iterdir()) == [f"step-{step:09d}" for step in steps(run)]


def test_by_default_only_the_newest_are_kept(run: RunDir, opened) -> None:
    save(opened(every=5, keep=1, best=False), *range(0, 31, 5), best=15)
    assert steps(run) == [30]


def test_a_trained_run_saves_on_schedule_and_at_its_end_and_step_0_on_request(worker) -> None:
    stages = "checkpoint.every=[[2, 4], [5, 20]]"
    run = worker("name=run", "until.steps=13", stages, "checkpoint.keep=9", "checkpoint.first=true")
    assert steps(run) == [0, 2, 4, 5, 10, 13]
    again = worker("name=plain", "until.steps=3", stages)
    assert steps(again) == [2, 3]


def test_a_run_saves_by_the_clock_too(worker, mine) -> None:
    clock = ["until.steps=1M", "until.time=300s", "checkpoint.every=0.3s", "checkpoint.keep=99"]
    run = worker("name=run", *clock, f"callbacks=[{mine(ENOUGH)}:Enough]", code=75)
    assert run.exit().state == "paused"
    assert len(steps(run)) >= 3, events_of(run)


def test_the_best_evaluation_is_saved_and_kept_beyond_the_newest(worker) -> None:
    rising = ["optim.lr=4", "optim.warmup=12", "optim.schedule=constant"]  # ever larger steps: the loss rises
    run = worker("name=run", "until.steps=12", "eval.every=3", "checkpoint.keep=1", *rising)
    losses = {record["step"]: record["val_loss"] for record in run.metrics() if "val_loss" in record}
    best = min(losses, key=lambda step: losses[step])
    assert best < 12, f"the loss fell to the end, so the test shows nothing: {losses}"
    assert steps(run) == [best, 12]


def test_a_manifest_is_read_without_torch_and_names_step_world_state_and_the_hash_of_every_file(worker) -> None:
    run = worker("name=run", "until.steps=2")
    path = run.checkpoint(2)
    manifest = json.loads((path / "manifest.json").read_text())
    assert (manifest["step"], manifest["world"]) == (2, 1)
    assert manifest["state"]["progress"]["step"] == 2
    assert manifest["state"]["choices"]["precision"] == "fp32"
    assert manifest["state"].keys() >= {"horizon", "loss_scale", "resume"}
    files = {file.name for file in path.iterdir()} - {"manifest.json"}
    assert manifest["files"].keys() == files
    for name, facts in manifest["files"].items():
        data = (path / name).read_bytes()
        assert facts == {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 0xFF
    path.write_bytes(data)


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-10])


@pytest.mark.parametrize("damage", [flip, truncate, Path.unlink])
@pytest.mark.parametrize("pattern", ["*.distcp", ".metadata"])
def test_a_damaged_newest_checkpoint_falls_back_to_the_previous_checkpoint_and_reports_it(
    run: RunDir, opened, damage: Callable[[Path], None], pattern: str
) -> None:
    save(opened(), 1, 2, 3)
    (file,) = run.checkpoint(3).glob(pattern)
    damage(file)
    assert load(opened()) == 2
    (event,) = [event for event in events_of(run) if event["kind"] == "fallback"]
    assert event["step"] == 3
    assert file.name in event["reason"]
    assert len(list(run.checkpoints.glob("damaged-step-000000003-*"))) == 1
    assert load(opened()) == 2


@pytest.mark.parametrize("percent", range(0, 100, 7))
def test_a_manifest_with_any_change_is_refused(run: RunDir, opened, percent: int) -> None:
    save(opened(), 1, 2)
    path = run.checkpoint(2) / "manifest.json"
    data = bytearray(path.read_bytes())
    position = percent * len(data) // 100
    while data[position : position + 1].isspace():
        position += 1
    data[position] ^= 0x81 if percent % 2 else 0x01
    path.write_bytes(data)
    assert load(opened()) == 1
    assert [event["step"] for event in events_of(run) if event["kind"] == "fallback"] == [2]


def remove_manifest(checkpoint: Path) -> None:
    (checkpoint / "manifest.json").unlink()


def truncate_manifest(checkpoint: Path) -> None:
    truncate(checkpoint / "manifest.json")


def flip_table(checkpoint: Path) -> None:
    flip(checkpoint / ".metadata")


@pytest.mark.parametrize("damage", [remove_manifest, truncate_manifest, flip_table, shutil.rmtree])
def test_when_no_checkpoint_can_be_used_the_run_stops_and_changes_nothing(
    run: RunDir, opened, damage: Callable[[Path], None]
) -> None:
    save(opened(), 1, 2)
    for step in (1, 2):
        damage(run.checkpoint(step))
    before = sorted(run.checkpoints.rglob("*"))
    for _ in range(2):
        with pytest.raises(UserError, match="was saved at step 2, and none of its checkpoints can be used") as error:
            load(opened())
        assert "checkpoint.resume=0" in error.value.remedy
        assert "--new" in error.value.remedy
    assert sorted(run.checkpoints.rglob("*")) == before
    assert load(opened(resume=0)) is None
    assert run.saved() == []
    renamed = 0 if damage is shutil.rmtree else 2
    assert len(list(run.checkpoints.iterdir())) == renamed, "renamed checkpoints are kept"
    assert load(opened(resume=0)) is None


def test_a_run_with_resume_0_may_lose_what_it_saved_since(run: RunDir, opened) -> None:
    save(opened(resume=0), 1)
    remove_manifest(run.checkpoint(1))
    with pytest.raises(UserError, match="was saved at step 1") as error:
        load(opened(resume=0))
    assert "checkpoint.resume=0" not in error.value.remedy, "it is 0 already"


def test_a_run_that_was_killed_before_its_first_checkpoint_starts_again(run: RunDir, opened) -> None:
    run.add_event(events.Started(step=0, chip="CPU", parameters=8), rank=0)
    run.add_metrics({"step": 7, "loss": 1.0})
    run.checkpoint(8).mkdir()
    assert load(opened()) is None
    assert list(run.checkpoints.iterdir()) == []


def test_metrics_alone_show_that_a_run_has_been_trained(run: RunDir, opened) -> None:
    run.add_metrics({"step": 7, "loss": 1.0})
    with pytest.raises(UserError, match="was saved at step 7"):
        load(opened())


def test_a_checkpoint_without_its_manifest_is_renamed_and_an_interrupted_save_is_deleted(run: RunDir, opened) -> None:
    save(opened(), 1, 2)
    weights = (run.checkpoint(2) / "__0_0.distcp").read_bytes()
    remove_manifest(run.checkpoint(2))
    run.checkpoint(3).mkdir()
    (run.checkpoint(3) / "__0_0.distcp").write_bytes(b"a part")
    (run.checkpoints / "step-000000009-copy").mkdir()
    assert load(opened()) == 1
    (renamed,) = run.checkpoints.glob("incomplete-step-000000002-*")
    assert (renamed / "__0_0.distcp").read_bytes() == weights
    names = {path.name for path in run.checkpoints.iterdir()}
    assert names == {"step-000000001", "step-000000009-copy", renamed.name}
    (event,) = [event for event in events_of(run) if event["kind"] == "fallback"]
    assert (event["step"], event["reason"]) == (2, "manifest.json is missing")


def test_only_a_few_checkpoints_without_a_manifest_are_kept(run: RunDir, opened) -> None:
    for step in range(2, 7):
        save(opened(), *([1] if step == 2 else []), step)
        remove_manifest(run.checkpoint(step))
        assert load(opened()) == 1
    assert sorted(path.name[:25] for path in run.checkpoints.iterdir()) == [
        "incomplete-step-000000005", "incomplete-step-000000006", "step-000000001",
    ]  # fmt: skip


def test_a_half_pruned_checkpoint_is_deleted_without_a_fallback(run: RunDir, opened) -> None:
    save(opened(), 1, 2)
    run.checkpoint(1).rename(run.checkpoints / ".pruned-step-000000001-5")
    assert load(opened()) == 2
    assert [path.name for path in run.checkpoints.iterdir()] == ["step-000000002"]
    assert all(event["kind"] != "fallback" for event in events_of(run))


@pytest.mark.parametrize("linked_part", ["folder", "tensors", "manifest.json"])
def test_a_link_is_not_followed(run: RunDir, opened, tmp_path: Path, linked_part: str) -> None:
    save(opened(keep=9), 1, 2)
    name = {"folder": ".", "tensors": "__0_0.distcp"}.get(linked_part, linked_part)
    linked, elsewhere = run.checkpoint(2) / name, tmp_path / "elsewhere"
    linked.rename(elsewhere)
    (run.checkpoint(2) / name).symlink_to(elsewhere)
    assert load(opened(keep=9)) == 1
    (event,) = [event for event in events_of(run) if event["kind"] == "fallback"]
    assert "is a link" in event["reason"]
    assert elsewhere.exists()


@pytest.mark.parametrize("make", [Path.touch, os.mkfifo], ids=["file", "pipe"])
def test_a_file_in_the_place_of_a_checkpoint_is_renamed(run: RunDir, opened, make) -> None:
    save(opened(keep=9), 1)
    make(run.checkpoint(2))
    checkpoints = opened(keep=9)
    assert load(checkpoints) == 1
    (event,) = [event for event in events_of(run) if event["kind"] == "fallback"]
    assert (event["step"], event["reason"]) == (2, "it is not a folder")
    save(checkpoints, 2)
    assert load(opened(keep=9)) == 2


@pytest.mark.parametrize("make", [Path.touch, os.mkfifo], ids=["file", "pipe"])
def test_a_failed_save_keeps_the_last_good_checkpoint_and_is_retried(run: RunDir, opened, make) -> None:
    checkpoints = opened()
    save(checkpoints, 1)
    make(run.checkpoint(2))
    checkpoints.save(2, {"model": tensor(2)}, {"progress": {"best_step": None}})
    problem = checkpoints.finish_save(wait=True)
    assert problem == "File exists"
    assert [event["step"] for event in events_of(run) if event["kind"] == "checkpoint failed"] == [2]
    assert load(opened()) == 1
    save(checkpoints, 2)
    assert load(opened()) == 2


def test_a_run_rewinds_to_the_step_of_checkpoint_resume_once(run: RunDir, opened) -> None:
    save(opened(keep=9), 10, 20, 30)
    back = opened(keep=9, resume=10)
    assert load(back) == 10
    assert load(opened(keep=9, resume=10)) == 10  # it crashed before its first save
    save(back, 15, 20)
    assert load(opened(keep=9, resume=10)) == 20
    assert load(opened(keep=9)) == 20
    assert len(list(run.checkpoints.glob("left-step-*"))) == 2
    save(opened(keep=9), 25)
    assert load(opened(keep=9, resume=10)) == 10


def test_a_run_can_rewind_to_step_0_even_when_it_was_not_saved(opened) -> None:
    save(opened(), 10, 20)
    assert load(opened(resume=0)) is None


def test_a_run_cannot_rewind_to_a_step_that_was_not_saved(run: RunDir, opened) -> None:
    save(opened(), 10, 20)
    with pytest.raises(UserError, match="no checkpoint of that step") as error:
        load(opened(resume=15))
    assert "10, 20" in error.value.remedy
    assert steps(run) == [10, 20]


def test_a_run_with_a_damaged_checkpoint_reports_it_and_ends_with_the_same_losses(stoker, tokens: Path) -> None:
    overrides = ["train", "name=run", f"data={tokens}", *OVERRIDES, "checkpoint.every=4"]
    stoker(*overrides, "until.steps=12")
    run = stoker.run("run")
    before = losses(run)
    (file,) = run.checkpoint(12).glob("*.distcp")
    flip(file)
    done = stoker(*overrides, "until.steps=14")
    assert f"the checkpoint of step 12 is damaged ({file.name} has changed" in done.stdout
    assert "resumed at step 8" in done.stdout
    assert [record["step"] for record in run.metrics()] == list(range(1, 15))
    assert losses(run).items() >= before.items()
    stoker("audit", "run")


def losses(run: RunDir) -> dict[int, float]:
    return {record["step"]: record["loss"] for record in run.metrics()}


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Callable[[str], Path]]:
    """A disk of a given size; called again it has another."""
    place = tmp_path / "disk"
    place.mkdir()

    def resize(size: str) -> Path:
        options = f"{'remount,' if place.is_mount() else ''}size={size}"
        done = subprocess.run(
            ["mount", "-t", "tmpfs", "-o", options, "none", place], capture_output=True, text=True, check=False
        )
        if done.returncode:
            pytest.skip(f"a disk of its own cannot be mounted here: {done.stderr.strip()}")
        return place

    try:
        yield resize
    finally:
        if place.is_mount():
            subprocess.run(["umount", "--lazy", place], check=True)


def test_a_full_disk_during_a_save_keeps_the_last_good_checkpoint_and_loses_nothing(
    stoker, tokens: Path, small_disk: Callable[[str], Path]
) -> None:
    overrides = ["train", f"data={tokens}", *OVERRIDES, "checkpoint.every=4", "until.steps=12"]
    stoker(*overrides, "name=whole")
    whole = stoker.run("whole")
    size = sum(file.stat().st_size for file in whole.checkpoint(12).iterdir())

    disk = small_disk(str(int(1.7 * size)))  # room for one checkpoint, not for two
    run = RunDir(disk / "run")
    full = stoker(*overrides, "name=run", "--runs", str(disk), code=75)
    assert "the checkpoint of step 8 could not be saved" in full.stdout
    assert "enforce fail" not in full.stdout, "torch's own message for a full disk is of no use"
    assert_one_line(full.stderr, "Make room on the disk")
    assert steps(run) == [4]
    assert run.exit().state == "paused"
    assert [path.name for path in run.checkpoints.iterdir()] == ["step-000000004"]

    small_disk(str(8 * size))
    again = stoker(*overrides, "name=run", "--runs", str(disk))
    assert "resumed at step 4" in again.stdout
    assert losses(run) == losses(whole)
    stoker("audit", "run", "--runs", str(disk))


@pytest.mark.parametrize("workers", [1, pytest.param(2, marks=pytest.mark.soak)])
def test_a_disk_that_fills_up_ends_the_run_with_75_and_it_resumes_when_there_is_room(
    stoker, tokens: Path, small_disk: Callable[[str], Path], eventually, workers: int
) -> None:
    disk = small_disk("20M")
    overrides = [f"data={tokens}", "name=run", *OVERRIDES, "checkpoint.every=4", f"on.workers={workers}"]
    run = RunDir(disk / "run")
    process = stoker.start("train", *overrides, "until.steps=100k", "--runs", str(disk))
    eventually(lambda: bool(run.saved()))
    fill(disk / "filler")
    output, _ = process.communicate(timeout=300)
    assert process.returncode == 75, output
    assert "Make room on" in output
    assert "Traceback" not in output + run.log(0).read_text()
    (disk / "filler").unlink()

    last = steps(run)[-1]
    before = losses(run)
    again = stoker("train", *overrides, f"until.steps={last + 4}", "--runs", str(disk))
    assert f"resumed at step {last}" in again.stdout
    after = losses(run)
    assert sorted(after) == list(range(1, max(last + 4, *before) + 1))
    assert after.items() >= before.items()
    stoker("audit", "run", "--runs", str(disk))


def assert_one_line(stderr: str, *parts: str) -> None:
    (line,) = stderr.splitlines()
    assert [part for part in parts if part not in line] == [], line


def fill(path: Path) -> None:
    """Leave no byte."""
    with open(path, "wb", buffering=0) as file:
        for size in (2**20, 2**12, 1):
            try:
                while True:
                    file.write(b"x" * size)
            except OSError:
                continue
