"""What of a folder does not go into an image: .dockerignore and .stokerignore, by the rules of the former."""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from stoker.spec.errors import UserError

FILES = (".dockerignore", ".stokerignore")
ALWAYS = (
    "**/.git", "**/.hg", "**/.svn", "**/__pycache__", "**/*.pyc", "**/.venv", "**/.tox", "**/.nox", "**/node_modules",
    "**/.mypy_cache", "**/.pytest_cache", "**/.ruff_cache", "**/.ipynb_checkpoints", "**/.DS_Store", "runs", ".lab",
)  # fmt: skip
SECRETS = (
    "**/.env", "**/.env.*", "**/.netrc", "**/.ssh", "**/.aws", "**/.kube", "**/.docker", "**/.gnupg", "**/.pypirc",
    "**/.git-credentials", "**/.huggingface",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Ignore:
    rules: tuple[tuple[re.Pattern[str], bool], ...]
    """In their order, with whether a match takes a path out or back in."""

    @classmethod
    def of(cls, folder: Path, more: Iterable[str] = ()) -> Self:
        lines = [line for name in FILES if (file := folder / name).is_file() for line in file.read_text().splitlines()]
        words = [*ALWAYS, *lines, *SECRETS, *more]  # no file of the user's brings a secret back in
        found = (_rule(word.strip()) for word in words if word.strip() and not word.strip().startswith("#"))
        return cls(tuple(rule for rule in found if rule))

    def __call__(self, path: str) -> bool:
        """`path`: relative to the folder, with slashes. What is inside something left out is left out too."""
        parts = path.split("/")
        above = ["/".join(parts[:number]) for number in range(1, len(parts) + 1)]
        out = False
        for pattern, takes_out in self.rules:
            if out != takes_out and any(pattern.fullmatch(one) for one in above):
                out = takes_out
        return out

    @property
    def brings_back(self) -> bool:
        """A folder that is out may hold something that is in."""
        return any(not takes_out for _, takes_out in self.rules)


def literal(path: str) -> str:
    """A pattern for this path alone."""
    return "/" + re.sub(r"([*?\[\]\\!])", r"\\\1", path)


def _rule(word: str) -> tuple[re.Pattern[str], bool] | None:
    takes_out = not word.startswith("!")
    pattern = word.removeprefix("!").strip().strip("/")
    if pattern in ("", "."):
        return None
    try:
        return re.compile(_regex(pattern)), takes_out
    except re.error as e:
        raise UserError(
            f"'{word}' is no pattern: {e}", remedy=f"Mend that line of {' or '.join(FILES)}; [a-z] is a range"
        ) from e


def _regex(pattern: str) -> str:
    found, at = "", 0
    while at < len(pattern):
        rest = pattern[at:]
        if rest.startswith("**/"):
            found, at = found + "(?:.*/)?", at + 3
        elif rest.startswith("**"):
            found, at = found + ".*", at + 2
        elif rest[0] == "*":
            found, at = found + "[^/]*", at + 1
        elif rest[0] == "?":
            found, at = found + "[^/]", at + 1
        elif rest[0] == "[" and "]" in rest[2:]:
            end = rest.index("]", 2)
            inner = rest[1:end].replace("\\", "\\\\")
            found, at = found + f"[{'^' + inner[1:] if inner[0] in '!^' else inner}]", at + end + 1
        elif rest[0] == "\\" and len(rest) > 1:
            found, at = found + re.escape(rest[1]), at + 2
        else:
            found, at = found + re.escape(rest[0]), at + 1
    return found
