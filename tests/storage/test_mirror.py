"""A run directory that is kept in a store: what is uploaded and downloaded, and how conflicts are resolved."""

import hashlib
import json
import os
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from stoker.observe.runs import all_runs, find
from stoker.rundir import Exit, RunDir, write_json
from stoker.rundir.view import view
from stoker.spec.errors import UserError
from stoker.spec.run import RunSpec
from stoker.storage import layout
from stoker.storage.layout import PIECE_BYTES
from stoker.storage.mirror import place, pull, remote_of, run_dir, upload_folder
from stoker.storage.store import open_store
from stoker.storage.sync import UPLOAD_EVERY_S, mirrored
from stoker.supervise.signals import Signals
from tests.written import events_of

DONE = Exit(state="done", code=0, step=3, reason="all 3 steps are done")


def spec(**checkpoint: object) -> RunSpec:
    return RunSpec.model_validate(
        {
            "name": "tale",
            "model": {"layers": 1, "heads": 1, "width": 16, "context": 16, "vocab": 300},
            "data": {"path": "book.txt"},
            "batch": {"sequences": 2, "length": 16},
            "until": {"steps": 4},
            "checkpoint": checkpoint,
        }
    )


def work_on(url: str, *actions: Callable[[RunDir], None], wanted: RunSpec | None = None, exit: Exit = DONE) -> RunDir:
    """What `stoker train` and its supervisor do around the training itself."""
    wanted = wanted or spec()
    run = RunDir(place(url) / "tale")
    pull(run, resume=wanted.checkpoint.resume)
    if not run.exists():
        run.create(wanted, None)
    run.clear_exit()

    def work() -> int:
        for action in actions:
            action(run)
        run.write_exit(exit)
        return exit.code

    with run.lock():
        assert mirrored(run, work, hurry=lambda: False) == exit.code
    return run


def step(number: int, *, resume: int | str = "auto") -> Callable[[RunDir], None]:
    """Train one step and save it."""

    def train(run: RunDir) -> None:
        (run.ledger / "attempt-0001-rank-0000.jsonl").open("a").write(json.dumps({"step": number}) + "\n")
        run.add_metrics({"step": number, "time": float(number), "loss": 1 / number})
        folder = run.checkpoint(number)
        folder.mkdir()
        data = f"weights of {number}, {time.time_ns()}".encode()
        for name in (".metadata", "__0_0.distcp"):
            (folder / name).write_bytes(data)
        facts = {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
        state = {"progress": {"best_step": None, "step": number}, "resume": resume}
        files = {".metadata": facts, "__0_0.distcp": facts}
        write_json(folder / "manifest.json", {"step": number, "state": state, "files": files})

    return train


def prune(*numbers: int) -> Callable[[RunDir], None]:
    return lambda run: [shutil.rmtree(run.checkpoint(number)) for number in numbers]


def keep(number: int) -> Callable[[RunDir], None]:
    return lambda run: [shutil.rmtree(saved.path) for saved in run.saved()[:-number]]


@contextmanager
def no_background_uploads() -> Iterator[None]:
    """Nothing is uploaded before the end."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("stoker.storage.sync.UPLOAD_EVERY_S", 3600.0)
        yield


def steps_in(url: str) -> list[int]:
    return layout.look(open_store(url), "tale").complete


def contents(run: RunDir) -> dict[str, bytes]:
    paths = (path for path in run.path.rglob("*") if path.is_file() and path.name != "lock")
    return {str(path.relative_to(run.path)): path.read_bytes() for path in paths}


def test_another_machine_finds_the_run_as_it_was_left(bucket: str, machine) -> None:
    machine("one")
    first = work_on(bucket, step(1), step(2), step(3))
    machine("two")
    copy = RunDir(place(bucket) / "tale")
    assert not copy.exists()
    pull(copy, resume="auto")
    assert contents(copy) == {
        path: data
        for path, data in contents(first).items()
        if not path.startswith(("checkpoints/step-000000001", "checkpoints/step-000000002"))
    }
    assert [saved.step for saved in run_dir(copy.path).saved()] == [1, 2, 3]


def test_a_run_can_move_between_machines(bucket: str, machine) -> None:
    for number in range(1, 6):
        machine("even" if number % 2 == 0 else "odd")
        run = work_on(bucket, step(number), keep(2), wanted=spec(keep=2))
    machine("third")
    copy = find("tale", place(bucket))
    assert [record["step"] for record in copy.metrics()] == [1, 2, 3, 4, 5]
    assert (run.ledger / "attempt-0001-rank-0000.jsonl").read_text().count("\n") == 5
    assert steps_in(bucket) == [4, 5]


def test_pruned_checkpoints_are_pruned_in_the_store_manifest_first(bucket: str) -> None:
    work_on(bucket, step(1), step(2), step(3), prune(1, 2))
    assert steps_in(bucket) == [3]
    assert list(layout.look(open_store(bucket), "tale").checkpoints) == [3]


def test_the_readers_of_another_machine_see_it_grow(bucket: str, machine, eventually) -> None:
    machine("writer")
    folder = place(bucket)

    def look(_run: RunDir) -> None:
        machine("reader")
        eventually(lambda: is_visible(bucket), every_s=0.1)
        view_there = view(find("tale", place(bucket)))
        assert (view_there.state, view_there.step) == ("running", 1)
        machine("writer")

    work_on(bucket, step(1), look, step(2))
    machine("reader")
    now = view(find("tale", place(bucket)))
    assert (now.state, now.loss, now.checkpoint) == ("done", 0.5, 2)
    assert [run.name for run in all_runs(place(bucket))] == ["tale"]
    assert folder != place(bucket)


def is_visible(bucket: str) -> bool:
    return any(run.metrics() for run in all_runs(place(bucket)))


def test_files_that_grow_are_a_few_pieces_and_never_sent_twice(s3: str, s3_wire) -> None:
    def write(run: RunDir) -> None:
        for _ in range(40):
            with open(run.log(0), "ab") as log:
                log.write(os.urandom(PIECE_BYTES // 8))
            time.sleep(0.01)

    run = work_on(s3, write)
    pieces = layout.look(open_store(s3), "tale").pieces["logs/rank-0.log"]
    assert list(pieces) == [number * PIECE_BYTES for number in range(5)]
    store = open_store(s3)
    data = b"".join(store.get(f"tale/{layout.piece('logs/rank-0.log', start)}") or b"" for start in pieces)
    assert data == run.log(0).read_bytes()
    s3_wire.sent = 0
    work_on(s3)
    assert s3_wire.sent < PIECE_BYTES


def test_a_rotated_log_continues_in_the_store(bucket: str, machine) -> None:
    machine("one")
    texts = [os.urandom(PIECE_BYTES + 17), os.urandom(PIECE_BYTES // 2), os.urandom(999)]

    def write(text: bytes) -> Callable[[RunDir], None]:
        return lambda run: run.log(0).open("ab").write(text)

    def rotate(run: RunDir) -> None:
        os.rename(run.log(0), f"{run.log(0)}.1")

    work_on(bucket, write(texts[0]))
    work_on(bucket, write(texts[1]), rotate, write(texts[2]))
    machine("two")
    assert run_dir(place(bucket) / "tale").logs.joinpath("rank-0.log").read_bytes() == b"".join(texts)
    work_on(bucket, write(b"more"))
    machine("one")
    assert find("tale", place(bucket)).logs.joinpath("rank-0.log").read_bytes() == texts[2] + b"more"


def test_where_both_have_advanced_the_store_wins(bucket: str, machine) -> None:
    machine("one")
    work_on(bucket, step(1))
    with no_background_uploads(), pytest.raises(KeyboardInterrupt):  # it trains, and dies before that is uploaded
        work_on(bucket, step(2), interrupt)
    machine("two")
    release_lock(bucket)
    work_on(bucket, step(3))

    machine("one")
    copy = find("tale", place(bucket))
    assert [record["step"] for record in copy.metrics()] == [1, 3]
    set_aside = RunDir(place(bucket) / ".left" / "tale")
    assert [record["step"] for record in set_aside.metrics()] == [1, 2]
    work_on(bucket, step(4))
    assert steps_in(bucket) == [1, 3, 4]


def test_files_missing_after_a_kill_are_uploaded_when_the_same_machine_resumes(bucket: str, machine) -> None:
    machine("one")
    with no_background_uploads(), pytest.raises(KeyboardInterrupt):
        work_on(bucket, step(1), step(2), interrupt)
    assert steps_in(bucket) == []
    release_lock(bucket)
    work_on(bucket, step(3))
    assert steps_in(bucket) == [1, 2, 3]


def test_a_deleted_copy_is_fetched_again(bucket: str, machine) -> None:
    machine("one")
    run = work_on(bucket, step(1))
    pull(run, resume="auto")  # about to resume
    shutil.rmtree(run.path)
    work_on(bucket, step(2))
    assert [record["step"] for record in run.metrics()] == [1, 2]
    assert steps_in(bucket) == [1, 2]


def test_a_run_that_was_deleted_in_the_store_is_gone(bucket: str) -> None:
    work_on(bucket, step(1))
    store = open_store(bucket)
    store.delete(store.list("tale/").objects)
    with pytest.raises(UserError, match=f"there is no run 'tale' in {bucket}"):
        find("tale", place(bucket))
    work_on(bucket, step(2))
    assert steps_in(bucket) == [2]


def test_a_damaged_newest_checkpoint_falls_back_to_the_one_before(bucket: str, machine) -> None:
    machine("one")
    work_on(bucket, step(1), step(2), step(3))
    open_store(bucket).put("tale/checkpoints/step-000000003/__0_0.distcp", b"weights of 3, but not these")
    machine("two")
    run = RunDir(place(bucket) / "tale")
    pull(run, resume="auto")
    assert [saved.step for saved in run.saved()] == [2, 3]


def test_a_run_that_resumes_from_an_earlier_step_replaces_the_later_checkpoints(bucket: str, machine) -> None:
    machine("one")
    work_on(bucket, step(1), step(2), step(3))
    machine("two")
    work_on(bucket, prune(3), step(3, resume=2), wanted=spec(resume=2))
    assert steps_in(bucket) == [1, 2, 3]
    machine("three")
    run = RunDir(place(bucket) / "tale")
    pull(run, resume=2)
    assert [saved.manifest.state.resume for saved in run.saved()] == [2]


@pytest.mark.parametrize("bucket", ["s3", pytest.param("gs", marks=pytest.mark.soak)], indirect=True)
def test_a_store_that_fails_while_training_is_reported_once_and_caught_up(
    bucket: str, wire, machine, eventually
) -> None:
    machine("one")

    def without(run: RunDir) -> None:
        wire.take_down()
        step(2)(run)
        eventually(lambda: len(_notes(run)) >= 1)
        time.sleep(1)
        wire.mend()
        eventually(lambda: any("can be reached again" in note for note in _notes(run)))

    run = work_on(bucket, step(1), without, step(3))
    assert (
        len([note for note in _notes(run) if "training continues" in note]) <= 2
    )  # one for checkpoints, one for the rest
    machine("two")
    assert [record["step"] for record in find("tale", place(bucket)).metrics()] == [1, 2, 3]


@pytest.mark.parametrize("bucket", ["s3", pytest.param("gs", marks=pytest.mark.soak)], indirect=True)
def test_a_run_whose_end_was_not_uploaded_is_paused_and_reports_what_is_missing(bucket: str, wire, machine) -> None:
    machine("one")
    run = RunDir(place(bucket) / "tale")
    pull(run, resume="auto")
    run.create(spec(), None)

    def work() -> int:
        step(1)(run)
        run.write_exit(DONE)
        wire.take_down()
        return 0

    with run.lock(), no_background_uploads():
        assert mirrored(run, work, hurry=lambda: False) == 75
    exit = run.exit()
    assert exit is not None
    assert (exit.state, exit.code) == ("paused", 75)
    assert f"all 3 steps are done; not yet in {bucket}: checkpoints/step-000000001" in exit.reason
    wire.mend()
    release_lock(bucket)
    with Signals() as signals:
        work_on(bucket, lambda _run: time.sleep(2 * UPLOAD_EVERY_S + 1))
    assert not signals.stop_requested  # the writer that gave up ignores the new writer
    assert steps_in(bucket) == [1]


def test_a_second_request_to_stop_interrupts_the_last_upload(s3: str, s3_wire) -> None:
    run = RunDir(place(s3) / "tale")
    pull(run, resume="auto")
    run.create(spec(), None)
    requested: list[float] = []

    def work() -> int:
        step(1)(run)
        run.write_exit(DONE)
        s3_wire.most = s3_wire.sent  # the upload blocks
        requested.append(time.monotonic() + 1)
        return 0

    with run.lock(), no_background_uploads():
        assert mirrored(run, work, hurry=lambda: time.monotonic() > requested[0]) == 75
    assert time.monotonic() - requested[0] < 10
    exit = run.exit()
    assert exit is not None
    assert exit.reason.endswith("(it had to end at once)")
    s3_wire.cut()


def test_a_checkpoint_with_a_missing_file_is_left_out(bucket: str) -> None:
    def lose_a_file(run: RunDir) -> None:
        (run.checkpoint(2) / "__0_0.distcp").unlink()

    with no_background_uploads():
        work_on(bucket, step(1), step(2), lose_a_file)
    assert steps_in(bucket) == [1]


def test_a_second_writer_is_refused_with_the_name_of_the_first(bucket: str, machine) -> None:
    machine("one")

    def second(_run: RunDir) -> None:
        machine("two")
        with pytest.raises(UserError, match=f"run 'tale' is being written by process {os.getpid()} on "):
            pull(RunDir(place(bucket) / "tale"), resume="auto")
        holder = find("tale", place(bucket)).holder()
        assert holder is not None
        assert holder["pid"] == os.getpid()
        machine("one")

    work_on(bucket, lambda _run: time.sleep(3), second)


def test_a_run_that_was_taken_over_ends_and_names_the_new_writer(s3: str, eventually) -> None:
    run = RunDir(place(s3) / "tale")
    pull(run, resume="auto")
    run.create(spec(), None)
    store = open_store(s3)

    def work() -> int:
        key = f"tale/{layout.lock(1)}"
        writer = json.loads(store.get(key) or b"{}") | {"token": "another", "pid": 4711, "host": "elsewhere"}
        assert store.put_if_absent(f"tale/{layout.lock(2)}", json.dumps(writer).encode())
        eventually(lambda: signals.stop_requested)
        step(1)(run)
        run.write_exit(DONE)
        return 0

    with Signals() as signals, run.lock():
        assert mirrored(run, work, hurry=lambda: False) == 3
    exit = run.exit()
    assert exit is not None
    assert exit.reason.startswith("process 4711 on elsewhere has taken over the run")
    assert steps_in(s3) == []


def test_a_copy_without_recorded_state_is_replaced(bucket: str) -> None:
    run = work_on(bucket, step(1))
    shutil.rmtree(run.path.parent / ".mirror")
    run.add_metrics({"step": 2, "loss": 0.0})
    assert [record["step"] for record in find("tale", place(bucket)).metrics()] == [1]


def test_a_run_may_be_named_by_its_url(bucket: str, tmp_path: Path) -> None:
    work_on(bucket, step(1))
    assert find(f"{bucket}/tale", tmp_path).shown == f"{bucket}/tale"


def test_a_key_that_points_outside_the_run_is_ignored(bucket: str, tmp_path: Path) -> None:
    work_on(bucket, step(1))
    open_store(bucket).put("tale/tokenizer/../../../evil", b"evil")
    find("tale", place(bucket)).exists()
    assert not list(tmp_path.rglob("evil"))


@pytest.mark.parametrize("key", ["/spec.yaml", "../spec.yaml", ".left/spec.yaml"])
def test_a_folder_in_the_bucket_that_is_no_run_deletes_no_copy(bucket: str, key: str) -> None:
    run = work_on(bucket, step(1))
    open_store(bucket).put(key, b"no run")
    assert [listed.name for listed in all_runs(place(bucket))] == ["tale"]
    assert run.exists()


@pytest.mark.parametrize("name", ["..", ".mirror"])
def test_a_name_that_no_run_can_have_deletes_no_copy(bucket: str, name: str) -> None:
    run = work_on(bucket, step(1))
    with pytest.raises(UserError, match="there is no run"):
        find(name, place(bucket))
    assert run.exists()
    assert (place(bucket) / ".mirror" / "tale").is_dir()


def test_a_folder_is_uploaded_without_files_that_exist(bucket: str, wire, tmp_path: Path) -> None:
    folder = tmp_path / "export"
    (folder / "deep").mkdir(parents=True)
    (folder / "config.json").write_text("{}")
    (folder / "deep" / "model.safetensors").write_bytes(os.urandom(1 << 20))
    upload_folder(folder, f"{bucket}/export")
    assert list(open_store(f"{bucket}/export").list().objects) == ["config.json", "deep/model.safetensors"]
    wire.sent = 0
    upload_folder(folder, f"{bucket}/export")
    assert wire.sent < 100_000


def interrupt(_run: RunDir) -> None:
    raise KeyboardInterrupt


def release_lock(bucket: str) -> None:
    """Stands in for its expiry: the process that holds it is this one, and alive."""
    store = open_store(bucket)
    key = max(key for key in store.list("tale/lock/").objects)
    data = json.loads(store.get(key) or b"{}")
    store.put(key, json.dumps(data | {"held": False}).encode())


def _notes(run: RunDir) -> list[str]:
    return [event["text"] for event in events_of(run) if event["kind"] == "note"]


@pytest.mark.parametrize("text", ['{"url": "s3://somebody/else"}', "[]", "[" * 10_000, "{}"])
def test_a_downloaded_file_cannot_make_a_folder_the_copy_of_a_bucket(tmp_path: Path, text: str) -> None:
    """Exports to that folder would be uploaded to the bucket."""
    (tmp_path / "remote.json").write_text(text)
    assert remote_of(tmp_path) is None
    assert type(run_dir(tmp_path / "tale")) is RunDir


@pytest.mark.parametrize("text", ["[]", "[" * 10_000, "{}", '{"url": 5}'])
def test_a_damaged_place_of_copies_is_named(bucket: str, text: str) -> None:
    (place(bucket) / "remote.json").write_text(text)
    with pytest.raises(UserError, match=r"remote\.json is damaged"):
        run_dir(place(bucket) / "tale")


@pytest.mark.parametrize(
    "manifest", [b"{}", b"[" * 10_000, b"\xff\xfe", b'{"step": 2, "files": {"../x": {}}}', b"9" * 5000]
)
def test_an_invalid_manifest_in_a_store_is_no_checkpoint(bucket: str, manifest: bytes) -> None:
    work_on(bucket, step(1))
    open_store(bucket).put("tale/checkpoints/step-000000002/manifest.json", manifest)
    assert [saved.step for saved in run_dir(place(bucket) / "tale").saved()] == [1]
