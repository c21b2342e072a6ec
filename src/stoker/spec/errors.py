"""The errors that reach a user, one class per reaction.

    StokerError
    ├── UserError      the user's mistake: one line and a remedy, exit 2
    │   ├── MissingExtra   an optional part is not installed
    │   └── NotFound       what was asked for does not exist
    ├── RunFailed      the run itself failed: exit 3
    └── SavedForLater  the run stopped with its work saved and can be resumed: exit 75

They are raised anywhere, and caught in `cli/main.py` and in `train/__main__.py`, which writes exit.json.
"""

ENDS = (".", "?", "!", "…")  # after one of these no full stop follows


class StokerError(Exception):
    def __init__(self, problem: str, *, remedy: str) -> None:
        super().__init__(problem)
        self.problem = problem
        self.remedy = remedy

    def __str__(self) -> str:
        """The problem is one line, even with a line end in a name; a remedy may have several, such as a manifest."""
        problem = self.problem.replace("\n", "\\n")
        if not self.remedy:
            return problem
        return f"{problem}{'' if problem.endswith(ENDS) else '.'} {self.remedy}"


class UserError(StokerError):
    """Something the user can fix: a key, a file, a value."""


class MissingExtra(UserError):
    def __init__(self, module: str, extra: str) -> None:
        super().__init__(f"{module} is not installed", remedy=f"Run: pip install 'stoker[{extra}]'")


class NotFound(UserError):
    """What was asked for does not exist, or not yet."""


class RunFailed(StokerError):
    """The run failed, and would fail again if it were resumed unchanged."""


class SavedForLater(StokerError):
    """The run stopped early with its work saved; the same command resumes it."""


def first_line(error: BaseException) -> str:
    """The message of an error of another library, whose other lines are for its developers."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
