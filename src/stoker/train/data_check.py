"""No checkpoint holds a step that was trained on a changed shard: one worker a node reads them all beside training."""

from concurrent.futures import Future, wait

import torch.distributed as dist

from stoker.data.intact import BackgroundCheck
from stoker.data.pairs import AnySet
from stoker.spec.errors import UserError
from stoker.train.dist import Ranks

SMALL = 64 << 20  # bytes that are read before the first step: half a second, while the model is built
ASK_EVERY_S = 60.0  # far below the time after which a collective gives its peers up


class DataCheck:
    """Made on every worker. What is marked as collective is called by all of them together."""

    def __init__(self, tokens: AnySet, me: Ranks) -> None:
        self._world = me.world
        self._check = BackgroundCheck(tokens.files) if me.local_rank == 0 else None

    @property
    def problem(self) -> UserError | None:
        """What this worker's own check has found so far."""
        return self._check.problem if self._check else None

    def await_small(self) -> None:
        """Before the first step: wait for the check of a small set, and not for that of a large one."""
        if self._check and self._check.bytes <= SMALL:
            self._check.first.result()

    def confirm(self, group: dist.ProcessGroup) -> str | None:
        """Collective, before a checkpoint counts: why the data it was trained on is not what was prepared.

        A large set may take longer than a collective may wait, so the workers ask each other now and then.
        """
        look = self._check.look() if self._check else None
        while True:
            running = look is not None and self._is_running(look)
            told = self._gather((running, self._words()), group)
            problem = next((words for _, words in told if words), None)
            if problem or not any(running for running, _ in told):
                return problem[0] if problem else None

    def refuse(self) -> None:
        """Collective: raise what any worker has found, on all of them."""
        told = self._gather((False, self._words()), None)
        for problem, remedy in (words for _, words in told if words):
            raise UserError(problem, remedy=remedy)

    def close(self) -> None:
        if self._check:
            self._check.close()

    @staticmethod
    def _is_running(look: Future[None]) -> bool:
        if wait([look], timeout=ASK_EVERY_S).not_done:
            return True
        look.result()  # raises what nobody has foreseen
        return False

    def _words(self) -> tuple[str, str] | None:
        return (self.problem.problem, self.problem.remedy) if self.problem else None

    def _gather(
        self, mine: tuple[bool, tuple[str, str] | None], group: dist.ProcessGroup | None
    ) -> list[tuple[bool, tuple[str, str] | None]]:
        told = [mine] * self._world
        dist.all_gather_object(told, mine, group=group)
        return told
