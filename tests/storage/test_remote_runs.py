"""Runs in a store through the real command: killed, read from another machine, refused with a reason."""

import json
import os
import random
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import stoker as api
from stoker.rundir import RunDir
from stoker.storage import layout
from stoker.storage.mirror import place
from stoker.storage.store import cache, open_store
from tests.inside import inside
from tests.ports import free_port
from tests.written import events_of

MODEL = [
    "model.layers=1",
    "model.heads=2",
    "model.width=32",
    "model.context=32",
    "batch.sequences=4",
    "batch.length=32",
]
EXACT = [
    "precision=fp32",
    "on.device=cpu",
    "log.every=1",
    "log.tensorboard=false",
    "optim.warmup=5",
    "optim.lr=1e-3",
]
SHORT = [*MODEL, *EXACT, "until.steps=6", "checkpoint.every=3", "on.workers=1"]

HOLD = """\
import time
from pathlib import Path


def hold(record):
    while record["step"] == {step} and not Path("go").exists():
        time.sleep(0.05)
"""


def losses(run: RunDir) -> dict[int, float]:
    return {record["step"]: record["loss"] for record in run.metrics()}


def copy_of(url: str, name: str) -> RunDir:
    return RunDir(place(url) / name)


@pytest.fixture
def saved_in() -> Callable[[str, str], list[int]]:
    return lambda url, name: layout.look(open_store(url), name).complete


@pytest.mark.parametrize(
    ("kind", "steps", "workers"), [("s3", 120, 1), pytest.param("gs", 80, 2, marks=pytest.mark.soak)]
)
def test_a_run_whose_machine_is_lost_resumes_from_the_store_bit_for_bit(
    request, stoker, tokens: Path, eventually, kill_tree, saved_in, kind: str, steps: int, workers: int
) -> None:
    url: str = request.getfixturevalue(kind)
    overrides = [
        *MODEL,
        *EXACT,
        f"data={tokens}",
        f"until.steps={steps}",
        "checkpoint.every=20",
        f"on.workers={workers}",
    ]
    stoker("train", "name=whole", *overrides)

    step = random.randrange(41, 60)
    print(f"killed at step {step}")
    (stoker.folder / "hold.py").write_text(HOLD.format(step=step))
    overrides.append("callbacks=[hold:hold]")
    process = stoker.start("train", "name=killed", *overrides, "--runs", url)
    eventually(lambda: 40 in saved_in(url, "killed") or process.poll() is not None, every_s=0.2)
    kill_tree(process)
    (stoker.folder / "go").touch()
    assert process.returncode != 0, "it was over before it could be killed"
    shutil.rmtree(cache())
    stoker("train", "name=killed", *overrides, "--runs", url)

    run = copy_of(url, "killed")
    assert [event["step"] for event in events_of(run) if event["kind"] == "resumed"] == [40]
    assert losses(run) == losses(stoker.run("whole"))
    assert len(losses(run)) == steps
    shutil.rmtree(cache())
    report = json.loads(inside("audit", "killed", "--runs", url, "--json").stdout)
    assert (report["ok"], report["missing"], report["duplicated"], report["mismatched"]) == (True, 0, 0, 0)
    assert report["attempts"] == 2


def test_every_verb_reads_a_run_in_a_store(stoker, tokens: Path, s3: str, machine, tmp_path: Path) -> None:
    machine("one")
    stoker("train", "name=tale", *SHORT, f"data={tokens}", "--runs", s3)
    machine("two")
    runs = ["--runs", s3]

    (row,) = json.loads(inside("ps", *runs, "--json").stdout)
    assert (row["name"], row["state"], row["step"]) == ("tale", "done", 6)
    assert json.loads(inside("status", "tale", *runs, "--json").stdout)["checkpoint"] == 6
    assert "finished" in inside("events", "tale", *runs).stdout
    inside("logs", "tale", *runs)
    assert "is not running" in inside("stop", "tale", *runs).stdout
    assert "proven" in inside("audit", "tale", *runs).stdout
    assert not list((place(s3) / "tale" / "checkpoints").iterdir())
    inside("generate", "tale", "the stoker", "--tokens", "4", *runs)
    assert json.loads(inside("eval", "tale", "--sequences", "2", "--json", *runs).stdout)["step"] == 6
    assert json.loads(stoker("replay", "tale", "--step", "5", "--json", *runs).stdout)["replayed"]["equal"]
    inside("export", "tale", "--step", "3", "-o", str(tmp_path / "model"), *runs)
    assert (tmp_path / "model" / "config.json").is_file()
    assert "is done" in inside("train", "name=tale", *SHORT, f"data={tokens}", *runs).stdout
    done = inside("status", "tail", *runs, code=2)
    assert f"there is no run 'tail' in {s3}" in done.stderr
    assert "tale" in done.stderr


def test_an_export_and_an_import_are_kept_in_the_store(stoker, tokens: Path, s3: str, machine, monkeypatch) -> None:
    monkeypatch.chdir(stoker.folder)
    machine("one")
    stoker("train", "name=tale", *SHORT, f"data={tokens}", "--runs", s3)
    inside("export", "tale", "--runs", s3)
    inside("export", "tale", "-o", f"{s3}-models/tale", "--runs", s3)
    objects = open_store(f"{s3}-models").list("tale/").objects
    assert {"tale/config.json", "tale/model.safetensors", "tale/tokenizer.json"} <= set(objects)
    assert "tale/export/step-6/config.json" in open_store(s3).list("tale/export/").objects
    refused = inside("export", "tale", "-o", f"{s3}-models/tale", "--runs", s3, code=2)
    assert f"{s3}-models/tale is not empty" in refused.stderr

    machine("two")
    inside("export", "tale", "-o", "model", "--runs", s3)
    inside("import", "model", "--name", "back", "--runs", s3)
    machine("three")
    inside("generate", "back", "the stoker", "--tokens", "4", "--runs", s3)


@pytest.mark.parametrize("bucket", ["s3", pytest.param("gs", marks=pytest.mark.soak)], indirect=True)
def test_python_keeps_runs_in_a_store_too(tokens: Path, bucket: str, machine, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    machine("one")
    (tmp_path / "run.yaml").write_text("name: tale\n")
    run = api.submit("run.yaml", *SHORT, f"data={tokens}", runs=bucket)
    assert run.wait().state == "done"
    machine("two")
    opened = api.open_run(run.name, runs=bucket)
    assert len(opened.metrics()) == 6
    assert opened.view().state == "done"


def test_a_script_keeps_its_own_files_in_the_store(stoker, bucket: str, machine) -> None:
    (stoker.folder / "own.py").write_text(
        "import os\nfrom pathlib import Path\n"
        "file = Path(os.environ['STOKER_RUN_DIR'], 'mine', 'state.txt')\nfile.parent.mkdir(exist_ok=True)\n"
        "file.write_text(file.read_text() + 'again ' if file.exists() else 'begun ')\n"
        "os._exit(0 if 'again' in file.read_text() else 75)\n"
    )
    overrides = ["name=own", "script=own.py", "on.workers=1", "on.device=cpu", "--runs", bucket]
    machine("one")
    stoker("train", *overrides, code=75)
    machine("two")
    stoker("train", *overrides)
    assert open_store(bucket).get("own/mine/state.txt") == b"begun again "


@pytest.mark.soak
def test_a_store_that_is_down_at_the_end_gives_75_and_the_same_command_uploads_the_rest(
    stoker, tokens: Path, s3: str, s3_wire, eventually, saved_in, machine
) -> None:
    machine("one")
    arguments = ["name=tale", *SHORT, f"data={tokens}", "--runs", s3]
    process = stoker.start("train", *arguments)
    eventually(lambda: copy_of(s3, "tale").checkpoint(3).exists() or process.poll() is not None)
    s3_wire.take_down()
    output, _ = process.communicate(timeout=300)
    assert process.returncode == 75, output
    assert f"not yet in {s3}" in output
    s3_wire.mend()
    assert 6 not in saved_in(s3, "tale")
    stoker("train", *arguments)
    machine("two")
    assert json.loads(stoker("status", "tale", "--runs", s3, "--json").stdout)["state"] == "done"
    assert saved_in(s3, "tale") == [3, 6]


def refused_in_one_line(*arguments: str) -> str:
    done = inside("train", "name=tale", *SHORT, *arguments, code=2)
    (line,) = done.stderr.splitlines()
    assert "Traceback" not in done.stdout
    assert not (cache() / "runs").exists() or not list((cache() / "runs").glob("*/tale/checkpoints/*"))
    return line


@pytest.mark.parametrize("scheme", ["s3", "gs"])
@pytest.mark.usefixtures("nowhere")
def test_a_bucket_without_permission_is_refused_before_anything_is_done(
    tokens: Path, monkeypatch, forbidding: str, scheme: str
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", forbidding)
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", forbidding)
    line = refused_in_one_line(f"data={tokens}", "--runs", f"{scheme}://closed/runs")
    assert line.startswith(f"stoker: no permission for {scheme}://closed/runs")


def test_a_missing_bucket_is_refused(tokens: Path, bucket: str) -> None:
    url = f"{bucket[:5]}no-such-bucket/runs"
    assert "there is no bucket 'no-such-bucket'" in refused_in_one_line(f"data={tokens}", "--runs", url)


@pytest.mark.parametrize("scheme", ["s3", "gs"])
@pytest.mark.usefixtures("nowhere")
def test_an_endpoint_that_does_not_answer_is_named(tokens: Path, monkeypatch, scheme: str) -> None:
    url = f"http://127.0.0.1:{free_port('127.0.0.1')}"
    monkeypatch.setenv("AWS_ENDPOINT_URL", url)
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", url)
    line = refused_in_one_line(f"data={tokens}", "--runs", f"{scheme}://bucket/runs")
    assert f"{scheme}://bucket/runs cannot be reached" in line


@pytest.mark.usefixtures("nowhere")
def test_without_credentials_a_run_is_refused(tokens: Path, monkeypatch) -> None:
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    assert "no AWS credentials" in refused_in_one_line(f"data={tokens}", "--runs", "s3://bucket/runs")
    assert "no Google credentials" in refused_in_one_line(f"data={tokens}", "--runs", "gs://bucket/runs")


@pytest.mark.usefixtures("nowhere")
@pytest.mark.parametrize(
    ("url", "module", "extra"), [("s3://b/r", "boto3", "aws"), ("gs://b/r", "google.cloud", "gcp")]
)
def test_a_missing_extra_is_named(tmp_path: Path, url: str, module: str, extra: str) -> None:
    code = f"import sys; sys.modules[{module!r}] = None; from stoker.cli.main import main; sys.exit(main())"
    argv = [sys.executable, "-c", code, "ps", "--runs", url]
    done = subprocess.run(argv, cwd=tmp_path, capture_output=True, text=True)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1), done.stderr
    assert f"pip install 'stoker[{extra}]'" in done.stderr


@pytest.mark.usefixtures("nowhere")
def test_a_url_of_another_kind_is_refused(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert "hdfs://" in inside("ps", "--runs", "hdfs://name/runs", code=2).stderr
    assert os.listdir(tmp_path) == []
