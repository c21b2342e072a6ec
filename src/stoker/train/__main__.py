"""A worker: `python -m stoker.train RUN_DIR`, started by the supervisor with torchrun's environment."""

import errno
import os
import socket
import sys
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from stoker.rundir import Exit, RunDir
from stoker.spec import contract
from stoker.spec.errors import SavedForLater, StokerError, UserError
from stoker.train import dist
from stoker.train.devices import device
from stoker.train.guard import Signals
from stoker.train.trainer import Trainer


def main(run: RunDir) -> int:
    signals = Signals()
    me = dist.ranks()
    try:
        end = _train(run, me, signals)
        print(f"rank {me.rank} has ended: {end.reason}", flush=True)
    except StokerError as e:
        end = _exit_of(e, me)
        print(f"rank {me.rank}: {e}", file=sys.stderr, flush=True)
    except OSError as e:
        if e.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        end = _exit_of(_disk_full(run), me)
    if me.first or end.state == "failed" or end.rank is not None:
        with suppress(OSError):  # on a full disk the code alone must tell
            run.write_exit(end)
    return end.code


def _train(run: RunDir, me: dist.Ranks, signals: Signals) -> Exit:
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # read by cuBLAS when `deterministic` asks for it
    place = device(run.spec().on.device, local_rank=me.local_rank, local_world=int(os.environ["LOCAL_WORLD_SIZE"]))
    dist.connect(me, place.backend)
    print(f"rank {me.rank} of {me.world} on {socket.gethostname()}, {place.chip}", flush=True)
    try:
        trainer = Trainer(run, me, place, signals)
        try:
            return trainer.train()
        finally:
            trainer.close()
    finally:
        dist.disconnect()


def _disk_full(run: RunDir) -> SavedForLater:
    saved = run.saved()
    last = f"the checkpoint of step {saved[-1].step} stands" if saved else "no checkpoint stands"
    return SavedForLater(f"the disk of {run.path} is full; {last}", remedy="Make room, then run the same command again")


def _exit_of(error: StokerError, me: dist.Ranks) -> Exit:
    code = contract.EXIT_USER if isinstance(error, UserError) else contract.EXIT_FAILED
    end = Exit(state="failed", code=code, step=None, reason=error.problem, remedy=error.remedy, rank=me.rank)
    return replace(end, state="paused", code=contract.EXIT_SAVED) if isinstance(error, SavedForLater) else end


if __name__ == "__main__":
    sys.exit(main(RunDir(Path(sys.argv[1]))))
