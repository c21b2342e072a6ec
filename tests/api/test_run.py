"""A run from Python: submitted, watched, waited for and stopped, by the program that started it or by another."""

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

import stoker
from stoker.api.opening import begin
from stoker.api.run import Run, launch_run
from stoker.rundir import RunDir
from stoker.rundir.view import how_it_ended
from stoker.spec.data import Data
from stoker.spec.errors import UserError
from stoker.spec.model import Model
from stoker.spec.on import LocalOn
from stoker.spec.run import AnySpec, Batch, Log, Until

pytestmark = pytest.mark.slow

LONG = 100_000
STEPS = """\
import sys, time
for step in range(1, int(sys.argv[1]) + 1):
    print(f"step {step} loss 1")
    time.sleep(0.05)
"""


@pytest.fixture
def spec(tokens: Path) -> stoker.RunSpec:
    return stoker.RunSpec(
        name="tale",
        model=Model(layers=1, heads=1, width=16, context=16),
        data=Data(path=str(tokens)),
        batch=Batch(sequences=2, length=16),
        until=Until(steps=5),
        log=Log(every=1),
        compile=False,
        on=LocalOn(workers=1, device="cpu"),
    )


@pytest.fixture
def script(tmp_path: Path) -> stoker.ScriptSpec:
    """A run that starts quickly, for tests that do not depend on training."""
    (tmp_path / "steps.py").write_text(STEPS)
    return stoker.ScriptSpec(script=str(tmp_path / "steps.py"), args=[str(LONG)], on=LocalOn(workers=1, device="cpu"))


@pytest.fixture
def submit(spec: stoker.RunSpec, tmp_path: Path):
    """Submits a run, and stops it when the test ends."""
    submitted: list[Run] = []

    def start(*overrides: str, of: AnySpec = spec) -> Run:
        submitted.append(stoker.submit(of, *overrides, runs=tmp_path / "runs"))
        return submitted[-1]

    yield start
    for run in submitted:
        if run.stop():
            run.stop()
        run.wait()


def has_trained(run: Run) -> bool:
    return run.view().step > 0


def test_a_run_is_submitted_waited_for_and_read(submit, tmp_path: Path) -> None:
    run = submit("until.steps=7")
    assert run.view().state == "running"
    assert run.name.startswith("tale-")
    assert run.path == tmp_path / "runs" / run.name
    end = run.wait()
    assert (end.state, end.code, end.step) == ("done", 0, 7)
    assert run.spec.until.steps == 7
    assert run.view().state == "done"
    assert "started" in [event["kind"] for event in run.events()]
    assert list(RunDir(run.path).metrics())[-1]["step"] == 7
    assert repr(run) == f"Run('{run.name}', done, step 7)"
    for reference in (run.name, run.path, str(run.path)):
        second = stoker.open_run(reference, runs=tmp_path / "runs")
        assert second.wait() == end
        assert second.path == run.path
        assert not second.stop()


def test_a_run_is_stopped_and_resumed(submit, tmp_path: Path, eventually) -> None:
    run = submit(f"until.steps={LONG}")
    with pytest.raises(TimeoutError, match=run.name):
        run.wait(0.1)
    eventually(lambda: has_trained(run))
    assert run.stop()
    end = run.wait()
    assert (end.state, end.code) == ("paused", 75)
    assert end.step
    assert not run.stop()
    second = launch_run(stoker.load(run.spec, f"until.steps={end.step + 2}"), runs=tmp_path / "runs")
    assert second.wait().state == "done"
    assert second.path == run.path
    assert launch_run(second.spec, runs=tmp_path / "runs").wait().state == "done", "it stays done"


def test_wait_returns_when_the_supervisor_was_killed(
    submit, script: stoker.ScriptSpec, tmp_path: Path, eventually
) -> None:
    run = submit(of=script)
    reopened = stoker.open_run(run.name, runs=tmp_path / "runs")
    eventually(lambda: has_trained(run))
    holder = RunDir(run.path).holder()
    assert holder is not None
    os.kill(holder["pid"], signal.SIGKILL)
    for handle in (reopened, run):
        end = handle.wait()
        assert end.state == "failed"
        assert "supervisor" in end.reason
        assert handle.view().state == "interrupted"


def test_a_failed_run_raises_nothing(submit) -> None:
    end = submit("optim.lr=1e20", "optim.clip=null", "optim.warmup=0", "until.steps=200").wait()
    assert (end.state, end.code) == ("failed", 3)
    assert end.reason
    assert end.remedy


@pytest.mark.parametrize(
    ("overrides", "part"),
    [
        (["optim.rl=1"], "optim.rl is unknown"),
        (["data=gone.txt"], "gone.txt does not exist"),
        (["on.device=cuda", "on.workers=99"], "on."),
        (["model=gone:build"], "there is no module gone"),
        (["callbacks=['__main__:Tell']"], "the code of a script or a notebook"),
    ],
)
def test_a_wrong_spec_raises_and_creates_nothing(submit, tmp_path: Path, overrides: list[str], part: str) -> None:
    with pytest.raises(stoker.UserError, match=part):
        submit(*overrides)
    assert not list((tmp_path / "runs").glob("[!.]*"))


def test_an_unknown_run_is_refused_with_a_similar_name(spec: stoker.RunSpec, tmp_path: Path) -> None:
    begin(spec, runs=tmp_path)
    with pytest.raises(stoker.UserError, match="Did you mean tale"):
        stoker.open_run("tail", runs=tmp_path)


def test_overrides_replace_values_of_a_spec_and_its_paths_become_absolute(
    spec: stoker.RunSpec, tokens: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tokens.parent)
    relative = spec.model_copy(update={"data": Data(path=tokens.name)})
    loaded = stoker.load(relative, "optim.lr=1e-5", "until.steps=2k")
    assert isinstance(loaded, stoker.RunSpec)
    assert loaded.data.path == str(tokens)
    assert (loaded.optim.lr, loaded.until.steps) == (1e-5, 2000)
    assert loaded.name == "tale"
    assert (
        loaded.model_copy(update={"optim": relative.optim, "until": relative.until, "data": relative.data}) == relative
    )
    assert stoker.load(stoker.ScriptSpec(script="train.py")).script == str(tokens.parent / "train.py")


def test_a_run_file_is_loaded_from_its_name(tmp_path: Path) -> None:
    file = tmp_path / "books.yaml"
    file.write_text("data: ./books\nuntil: {steps: 10}\n")
    loaded = stoker.load(str(file), "seed=4")
    assert isinstance(loaded, stoker.RunSpec)
    assert (loaded.name, loaded.seed, loaded.data.path) == ("books", 4, str(tmp_path / "books"))


def test_it_works_in_a_thread_and_changes_no_signal_handlers(submit, script: stoker.ScriptSpec) -> None:
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGCHLD)}
    states = []
    thread = threading.Thread(target=lambda: states.append(submit("args=[1]", of=script).wait().state))
    thread.start()
    thread.join()
    assert states == ["done"]
    assert {number: signal.getsignal(number) for number in before} == before


def program(folder: Path, text: str, **environment: str) -> str:
    """Run a user's script, as a user does."""
    (folder / "program.py").write_text(text)
    done = subprocess.run(
        [sys.executable, "program.py"], cwd=folder, env=os.environ | environment, capture_output=True, text=True,
        timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_a_forked_child_sees_the_run_that_its_parent_submitted(script: stoker.ScriptSpec, tmp_path: Path) -> None:
    output = program(
        tmp_path,
        "import os, stoker\n"
        f"spec = stoker.ScriptSpec.model_validate_json({script.model_dump_json()!r})\n"
        "run = stoker.submit(spec)\n"
        "child = os.fork()\n"
        "if not child:\n"
        "    try:\n"
        "        run.wait(0.5)\n"
        "    except TimeoutError:\n"
        "        print('it runs', flush=True)\n"
        "    run.stop()\n"
        "    print(run.wait().state, flush=True)\n"
        "    os._exit(0)\n"
        "os.waitpid(child, 0)\n"
        "os.wait()  # for the supervisor\n"
        "print(run.wait().state)\n",
    )
    assert output.splitlines() == ["it runs", "paused", "paused"]


def test_a_script_needs_no_guard_against_being_imported_again(tmp_path: Path, books: Path) -> None:
    """Enough text for several processes: they must not run the user's script again."""
    text = "".join(file.read_text() for file in sorted(books.iterdir()))
    (tmp_path / "book.txt").write_text(text * (6 * 2**20 // len(text)))
    output = program(
        tmp_path,
        "import stoker\n"
        "print('once')\n"
        "model = {'layers': 1, 'heads': 1, 'width': 16, 'context': 16}\n"
        "spec = {'model': model, 'data': {'path': 'book.txt', 'tokenizer': {'train': 300}},\n"
        "        'batch': {'sequences': 2, 'length': 16}, 'until': {'steps': 1}, 'on': {'workers': 1}}\n"
        "run = stoker.submit(stoker.RunSpec.model_validate(spec))\n"
        "print(run.wait().state)\n",
    )
    assert output.split() == ["once", "done"]


def test_metrics_are_a_data_frame_with_pandas_and_else_a_list(spec: stoker.RunSpec, tmp_path: Path) -> None:
    run = begin(spec, runs=tmp_path).run
    for step in (1, 2, 3):
        run.add_metrics({"step": step, "loss": 4 / step})
    ask = f"import stoker\nmetrics = stoker.open_run({str(run.path)!r}).metrics()\nprint(type(metrics).__name__)\n"
    frame = program(tmp_path, f"{ask}print(metrics['step'].tolist(), metrics['loss'].notna().all())")
    assert frame.splitlines() == ["DataFrame", "[1, 2, 3] True"]
    nowhere = tmp_path / "nowhere"
    nowhere.mkdir()
    (nowhere / "pandas.py").write_text("raise ModuleNotFoundError('not installed', name='pandas')\n")
    plain = program(tmp_path, f"{ask}print([record['step'] for record in metrics])", PYTHONPATH=str(nowhere))
    assert plain.splitlines() == ["list", "[1, 2, 3]"]


def test_logs_are_those_of_a_worker_or_of_all(spec: stoker.RunSpec, tmp_path: Path) -> None:
    directory = begin(spec, runs=tmp_path).run
    for rank in (0, 1):
        directory.log(rank).write_text(f"rank {rank} says hello\nrank {rank} is done\n")
    run = stoker.open_run("tale", runs=tmp_path)
    assert list(run.logs()) == ["rank 0 says hello", "rank 0 is done"]
    assert list(run.logs(rank=1, tail=1)) == ["rank 1 is done"]
    assert "[1] rank 1 says hello" in list(run.logs(rank=None))
    with pytest.raises(stoker.UserError, match="no log of rank 7"):
        run.logs(rank=7)


def test_importing_stoker_imports_nothing_heavy() -> None:
    text = "import sys, stoker; stoker.Callback, stoker.RunSpec; print({'torch', 'numpy', 'rich'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"
    for name in stoker.__all__:
        assert getattr(stoker, name)
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        stoker.nonsense  # noqa: B018


def test_the_end_of_a_run_whose_folder_was_moved_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="the folder of run 'tale' is gone") as e:
        how_it_ended(RunDir(tmp_path / "tale"), 2)
    assert "Move it back" in e.value.remedy
