"""A worker: `python -m stoker.train RUN_DIR`, started by the supervisor with torchrun's environment."""

import errno
import os
import socket
import sys
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from stoker.rundir import Exit, RunDir
from stoker.rundir.state import RunState
from stoker.spec import contract
from stoker.spec.errors import SavedForLater, StokerError, UserError
from stoker.train.devices import device
from stoker.train.process_group import Ranks, connect, disconnect, ranks
from stoker.train.stopping import StopSignals
from stoker.train.trainer import Trainer


def main(run: RunDir) -> int:
    try:
        worker = ranks()
    except UserError as e:
        print(e, file=sys.stderr, flush=True)
        return contract.EXIT_USER
    signals = StopSignals()
    try:
        end = _train(run, worker, signals)
        print(f"rank {worker.rank} has ended: {end.reason}", flush=True)
    except StokerError as e:
        end = _exit_of(e, worker)
        print(f"rank {worker.rank}: {e}", file=sys.stderr, flush=True)
    except OSError as e:
        if e.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        end = _exit_of(_disk_full(run), worker)
    if worker.first or end.state == RunState.FAILED or end.rank is not None:
        with suppress(OSError):  # on a full disk only the exit code reports it
            run.write_exit(end)
    return end.code


def _train(run: RunDir, worker: Ranks, signals: StopSignals) -> Exit:
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # cuBLAS needs it for `deterministic`
    worker_device = device(run.spec().on.device, local_rank=worker.local_rank, local_world=worker.local_world)
    connect(worker, worker_device.backend)
    print(f"rank {worker.rank} of {worker.world} on {socket.gethostname()}, {worker_device.chip}", flush=True)
    try:
        trainer = Trainer(run, worker, worker_device, signals)
        try:
            return trainer.train()
        finally:
            trainer.close()
    finally:
        disconnect()


def _disk_full(run: RunDir) -> SavedForLater:
    saved = run.saved()
    last = f"the checkpoint of step {saved[-1].step} is complete" if saved else "no checkpoint is complete"
    return SavedForLater(f"the disk of {run.path} is full; {last}", remedy="Make room, then run the same command again")


def _exit_of(error: StokerError, worker: Ranks) -> Exit:
    code = contract.EXIT_USER if isinstance(error, UserError) else contract.EXIT_FAILED
    end = Exit(state=RunState.FAILED, code=code, step=None, reason=error.problem, remedy=error.remedy, rank=worker.rank)
    return replace(end, state=RunState.PAUSED, code=contract.EXIT_SAVED) if isinstance(error, SavedForLater) else end


if __name__ == "__main__":
    sys.exit(main(RunDir(Path(sys.argv[1]))))
