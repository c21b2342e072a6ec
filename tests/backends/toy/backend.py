"""A third place where runs execute: the folder `on.root` stands for another machine, on which supervisors run."""

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

from stoker.backends.backend import Backend, Facts, Listener, Message, Scaled, Submission
from stoker.backends.local.backend import Local
from stoker.rundir import Record, RunDir
from stoker.rundir.state import RunState
from stoker.rundir.view import RunRow
from stoker.spec import contract
from stoker.spec.on import LocalOn, Nodes, On
from stoker.spec.run import AnySpec
from tests.backends.toy.on import ToyOn

PIDS = "toy-pids.json"


def backend_for(on: On, message: Message) -> Backend:  # noqa: ARG001
    assert isinstance(on, ToyOn)
    return cast(Backend, Toy(Path(on.root)))


def backend_of(run: RunDir) -> Backend:
    return cast(Backend, Toy(Path(run.location().where)))


def rows(runs: list[RunDir]) -> list[RunRow]:
    return [replace(backend_of(run).view(run), folder=str(run.path)) for run in runs]


@dataclass(frozen=True)
class ToyRunning:
    remote: RunDir
    where: str = "in the toy"

    def poll(self) -> int | None:
        return None if _alive(self.remote) else Local().wait(self.remote).code

    def stop(self) -> None:
        _terminate(_alive(self.remote))

    def has_started(self, run: RunDir) -> bool:  # noqa: ARG002
        return self.remote.holder() is not None

    def record(self) -> Record:
        return {"state": RunState.RUNNING, "root": str(self.remote.path.parent)}


@dataclass(frozen=True)
class Toy:
    root: Path

    def __getattr__(self, name: str) -> Any:
        """Everything else works as on this machine, in another folder."""
        return lambda run, *arguments, **options: getattr(Local(), name)(self._remote(run), *arguments, **options)

    def discover(self) -> Facts:
        return Local().discover()

    def plan(self, spec: AnySpec, facts: Facts, run: Path, *, teacher: Any = None) -> Submission:
        return replace(Local().plan(spec, facts, self.root / run.name, teacher=teacher), run=run)

    def stage(self, submission: Submission, spec: AnySpec, facts: Facts, listener: Listener) -> Submission:  # noqa: ARG002
        listener.committed()
        run, remote = RunDir(submission.run), self._remote(RunDir(submission.run))
        run.write_place({"kind": "toy", "where": str(self.root)})
        shutil.copytree(run.path, remote.path, dirs_exist_ok=True, ignore=lambda *_: [contract.PLACE_FILE])
        on = LocalOn(workers=spec.on.workers, device=spec.on.device)  # for its supervisors it is this machine
        remote.write_spec(spec.model_copy(update={"on": on}))
        return submission

    def submit(self, submission: Submission, *, detached: bool) -> ToyRunning:  # noqa: ARG002
        run = RunDir(submission.run)
        self._start(self._remote(run), run.any_spec().on.node_range, submission.argv, submission.env)
        return ToyRunning(self._remote(run))

    def _start(self, remote: RunDir, nodes: Nodes, argv: Sequence[str], env: dict[str, str]) -> None:
        """One supervisor for each node that has none."""
        pids, separator = _alive(remote), argv.index("--") if "--" in argv else len(argv)
        for node in set(range(nodes.most)) - {int(node) for node in pids}:
            arguments = ("--nodes", nodes, "--node", str(node), "--address", "127.0.0.1", "--port", "0")
            with open(remote.path / f"node-{node}.txt", "ab") as output:
                command, merged = [*argv[:separator], *arguments, *argv[separator:]], env | os.environ
                process = subprocess.Popen(command, env=merged, stdout=output, stderr=output, start_new_session=True)
            pids[str(node)] = process.pid
        (remote.path / PIDS).write_text(json.dumps({"pids": pids, "argv": argv, "env": env}))

    def stop(self, run: RunDir) -> bool:
        return _terminate(_alive(self._remote(run)))

    def scale(self, run: RunDir, nodes: str, *, message: Message, committed: Callable[[], None]) -> Scaled:  # noqa: ARG002
        committed()
        remote, wanted = self._remote(run), Nodes(nodes)
        command = [sys.executable, "-P", "-m", contract.SCALE_MODULE, str(remote.path), wanted]
        was = json.loads(subprocess.run(command, check=True, capture_output=True).stdout)["was"]
        _terminate({node: pid for node, pid in _alive(remote).items() if int(node) >= wanted.most})
        self._start(remote, wanted, *[json.loads((remote.path / PIDS).read_text())[name] for name in ("argv", "env")])
        return Scaled(was=was, nodes=wanted, how="live", warnings=[])

    def _remote(self, run: RunDir) -> RunDir:
        return RunDir(self.root / run.name)


def _alive(remote: RunDir) -> dict[str, int]:
    pids: dict[str, int] = json.loads(file.read_text())["pids"] if (file := remote.path / PIDS).exists() else {}
    return {node: pid for node, pid in pids.items() if Path(f"/proc/{pid}/cwd").exists()}


def _terminate(pids: dict[str, int]) -> bool:
    for pid in pids.values():
        os.kill(pid, signal.SIGTERM)
    return bool(pids)
