"""Which files of a folder are left out of an image: .dockerignore and .stokerignore, with the syntax of the former."""

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
    """In order, with whether a match excludes a path or includes it again."""

    @classmethod
    def of(cls, folder: Path, more: Iterable[str] = ()) -> Self:
        lines = [line for name in FILES for line in _lines(folder / name)]
        patterns = [*ALWAYS, *lines, *SECRETS, *more]  # the user's files cannot include a secret again
        stripped = [pattern.strip() for pattern in patterns]
        rules = (_rule(pattern) for pattern in stripped if pattern and not pattern.startswith("#"))
        return cls(tuple(rule for rule in rules if rule))

    def __call__(self, path: str) -> bool:
        """`path`: relative to the folder, with slashes. The content of an excluded folder is excluded too."""
        parts = path.split("/")
        above = ["/".join(parts[:number]) for number in range(1, len(parts) + 1)]
        excluded = False
        for pattern, excludes in self.rules:
            if excluded != excludes and any(pattern.fullmatch(prefix) for prefix in above):
                excluded = excludes
        return excluded

    @property
    def can_include(self) -> bool:
        """An excluded folder may contain files that are included."""
        return any(not excludes for _, excludes in self.rules)


def literal(path: str) -> str:
    """A pattern for this path only."""
    return "/" + re.sub(r"([*?\[\]\\!])", r"\\\1", path)


def _lines(file: Path) -> list[str]:
    """Undecodable bytes become what they are in file names."""
    return file.read_text(encoding="utf-8", errors="surrogateescape").splitlines() if file.is_file() else []


def _rule(line: str) -> tuple[re.Pattern[str], bool] | None:
    excludes = not line.startswith("!")
    pattern = line.removeprefix("!").strip().strip("/")
    if pattern in ("", "."):
        return None
    try:
        return re.compile(_regex(pattern)), excludes
    except re.error as e:
        raise UserError(
            f"'{line}' is not a pattern: {e}", remedy=f"Fix that line of {' or '.join(FILES)}; [a-z] is a range"
        ) from e


def _regex(pattern: str) -> str:
    regex, at = "", 0
    while at < len(pattern):
        rest = pattern[at:]
        if rest.startswith("**/"):
            regex, at = regex + "(?:.*/)?", at + 3
        elif rest.startswith("**"):
            regex, at = regex + ".*", at + 2
        elif rest[0] == "*":
            regex, at = regex + "[^/]*", at + 1
        elif rest[0] == "?":
            regex, at = regex + "[^/]", at + 1
        elif rest[0] == "[" and "]" in rest[2:]:
            end = rest.index("]", 2)
            inner = rest[1:end].replace("\\", "\\\\")
            regex, at = regex + f"[{'^' + inner[1:] if inner[0] in '!^' else inner}]", at + end + 1
        elif rest[0] == "\\" and len(rest) > 1:
            regex, at = regex + re.escape(rest[1]), at + 2
        else:
            regex, at = regex + re.escape(rest[0]), at + 1
    return regex
