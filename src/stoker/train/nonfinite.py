"""NaN and Inf gradients: the loss scale that avoids them in fp16, and what a step with them does."""

from stoker.spec.errors import RunFailed

MAX_CONSECUTIVE_SKIPS = 10
MIN_LOSS_SCALE = 2.0**-14  # below this, overflow of fp16 cannot be the cause


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


class NonFiniteGuard:
    """Decides whether a step with NaN or Inf gradients is skipped or fails the run; it never succeeds silently."""

    def __init__(self, policy: str, loss_scale: LossScale) -> None:
        self.policy = policy
        self.loss_scale = loss_scale
        self.consecutive_skips = 0

    def check(self, step: int, *, finite: bool) -> bool:
        """True when the step may be applied."""
        if finite:
            self.consecutive_skips = 0
            return True
        self.consecutive_skips += 1
        if self.loss_scale.active:
            if self.loss_scale.scale < MIN_LOSS_SCALE:
                raise RunFailed(
                    f"the gradients overflow fp16 at step {step} however small the loss scale",
                    remedy="Lower optim.lr, or set precision: bf16",
                )
            return False
        if self.policy == "stop":
            raise RunFailed(
                f"the gradients are not finite at step {step}",
                remedy="Lower optim.lr or lengthen optim.warmup; optim.nonfinite=skip skips such steps",
            )
        if self.consecutive_skips >= MAX_CONSECUTIVE_SKIPS:
            raise RunFailed(
                f"the gradients were not finite {self.consecutive_skips} steps in a row, up to step {step}",
                remedy="Lower optim.lr or lengthen optim.warmup",
            )
        return False
