"""What may end a run from outside or from within: signals, and gradients that are not numbers."""

import signal
from types import FrameType

from stoker.spec.errors import RunFailed

MOST_SKIPS_IN_A_ROW = 10
SMALLEST_SCALE = 2.0**-14  # below this fp16 cannot be what is wrong


class Signals:
    """Remembers that the run was asked to save and end; the loop looks at it before each step."""

    def __init__(self) -> None:
        self.asked = False
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._remember)

    def _remember(self, _number: int, _frame: FrameType | None) -> None:
        self.asked = True


class LossScale:
    """Dynamic loss scaling for fp16; for the other precisions the scale stays 1."""

    def __init__(self, *, active: bool) -> None:
        self.active = active
        self.scale = 2.0**16 if active else 1.0
        self.good_steps = 0

    def update(self, *, finite: bool) -> None:
        if not self.active:
            return
        self.good_steps = self.good_steps + 1 if finite else 0
        if not finite:
            self.scale /= 2
        elif self.good_steps % 2000 == 0:
            self.scale *= 2

    def state(self) -> dict[str, float]:
        return {"scale": self.scale, "good_steps": self.good_steps}

    def restore(self, state: dict[str, float]) -> None:
        self.scale, self.good_steps = state["scale"], int(state["good_steps"])


class FiniteGuard:
    """Decides what a step with NaN or Inf gradients does. Such a run never ends as if all were well."""

    def __init__(self, policy: str, loss_scale: LossScale) -> None:
        self.policy = policy
        self.loss_scale = loss_scale
        self.in_a_row = 0

    def check(self, step: int, *, finite: bool) -> bool:
        """True when the step may be applied."""
        if finite:
            self.in_a_row = 0
            return True
        self.in_a_row += 1
        if self.loss_scale.active:
            if self.loss_scale.scale < SMALLEST_SCALE:
                raise RunFailed(
                    f"the gradients overflow fp16 at step {step} however small the loss scale",
                    remedy="Lower optim.lr, or set precision: bf16",
                )
            return False
        if self.policy == "stop":
            raise RunFailed(
                f"the gradients are not finite at step {step}",
                remedy="Lower optim.lr or lengthen optim.warmup; optim.nonfinite=skip leaves such steps out",
            )
        if self.in_a_row >= MOST_SKIPS_IN_A_ROW:
            raise RunFailed(
                f"the gradients were not finite {self.in_a_row} steps in a row, up to step {step}",
                remedy="Lower optim.lr or lengthen optim.warmup",
            )
        return False
