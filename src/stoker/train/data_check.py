"""Checks the data while training runs, so that no checkpoint holds a step trained on a changed shard.

One worker per node reads every shard in the background.
"""

from concurrent.futures import Future, wait

import torch.distributed as dist

from stoker.data.any_set import AnySet
from stoker.data.integrity import BackgroundCheck
from stoker.spec.errors import UserError
from stoker.train.process_group import Ranks

SMALL_BYTES = 64 << 20  # checked before the first step: half a second, while the model is built
SYNC_EVERY_S = 60.0  # far below the timeout of a collective


class DataCheck:
    """Made on every worker. Collective methods are called by all workers together."""

    def __init__(self, tokens: AnySet, worker: Ranks) -> None:
        self._world = worker.world
        self._check = BackgroundCheck(tokens.files) if worker.local_rank == 0 else None

    @property
    def problem(self) -> UserError | None:
        """The problem that this worker's own check has detected so far."""
        return self._check.problem if self._check else None

    def await_small(self) -> None:
        """Before the first step: wait for the check of a small set; a large set is checked while training."""
        if self._check and self._check.bytes <= SMALL_BYTES:
            self._check.first.result()

    def confirm(self, group: dist.ProcessGroup) -> str | None:
        """Collective, before a checkpoint becomes valid: why the data it was trained on is not what was prepared.

        Checking a large set may take longer than the timeout of a collective, so the workers synchronise meanwhile.
        """
        look = self._check.look() if self._check else None
        while True:
            running = look is not None and self._is_running(look)
            reports = self._gather((running, self._message()), group)
            message = next((message for _, message in reports if message), None)
            if message or not any(running for running, _ in reports):
                return message[0] if message else None

    def refuse(self) -> None:
        """Collective: raise a problem that any worker has detected, on all workers."""
        reports = self._gather((False, self._message()), None)
        for problem, remedy in (message for _, message in reports if message):
            raise UserError(problem, remedy=remedy)

    def close(self) -> None:
        if self._check:
            self._check.close()

    @staticmethod
    def _is_running(look: Future[None]) -> bool:
        if wait([look], timeout=SYNC_EVERY_S).not_done:
            return True
        look.result()  # raises an unexpected error
        return False

    def _message(self) -> tuple[str, str] | None:
        return (self.problem.problem, self.problem.remedy) if self.problem else None

    def _gather(
        self, report: tuple[bool, tuple[str, str] | None], group: dist.ProcessGroup | None
    ) -> list[tuple[bool, tuple[str, str] | None]]:
        reports = [report] * self._world
        dist.all_gather_object(reports, report, group=group)
        return reports
