"""Secrets: read where they are kept when a run is submitted, handed on in the environment, written nowhere."""

import os
import stat
from collections.abc import Mapping
from pathlib import Path

from stoker.spec.errors import UserError
from stoker.spec.regular import read_text
from stoker.spec.run import AnySpec

LONGEST = 128 * 1024  # bytes of one variable with its name: Linux takes no more


def resolve(spec: AnySpec) -> dict[str, str]:
    """The values, by name."""
    return read(spec.secrets)


def read(sources: Mapping[str, str]) -> dict[str, str]:
    """Name -> value, from name -> `env:NAME` or `file:PATH`. No message holds a value."""
    return {name: _value(name, source) for name, source in sources.items()}


def warnings(spec: AnySpec) -> list[str]:
    """What is careless about them."""
    files = {name: path for name, source in spec.secrets.items() if (path := _file(source))}
    return [
        f"secrets.{name}: other users can read {path}. Run: chmod 600 {path}"
        for name, path in files.items()
        if path.is_file() and path.stat().st_mode & (stat.S_IRGRP | stat.S_IROTH)
    ]


def _value(name: str, source: str) -> str:
    path = _file(source)
    value = _of_file(name, path) if path else _of_environment(name, source.removeprefix("env:"))
    if "\0" in value:
        raise UserError(
            f"secrets.{name} holds a zero byte, which no environment variable can",
            remedy="Encode it, such as with: base64",
        )
    if len(os.fsencode(value)) + len(name) + 2 > LONGEST:
        raise UserError(
            f"secrets.{name} is longer than an environment variable can be ({LONGEST // 1024} KiB)",
            remedy=f"Give the workers the file's name instead: env.{name}=PATH",
        )
    return value


def _of_environment(name: str, variable: str) -> str:
    value = os.environ.get(variable)
    if not value:
        raise UserError(
            f"secrets.{name} comes from the variable {variable}, which is {'not set' if value is None else 'empty'}",
            remedy=f"Set it with: export {variable}=…, or take it from a file: secrets.{name}=file:PATH",
        )
    return value


def _of_file(name: str, path: Path) -> str:
    try:
        if not stat.S_ISREG(path.stat().st_mode):  # a pipe tells it once, and it is read again when the run goes on
            raise _useless(name, path, "is no plain file")
        value = read_text(path).removesuffix("\n")
    except OSError as e:
        raise _useless(name, path, f"cannot be read: {e.strerror}") from e
    except UnicodeDecodeError:
        raise _useless(name, path, "is not UTF-8 text") from None
    if not value:
        raise _useless(name, path, "is empty")
    return value


def _useless(name: str, path: Path, why: str) -> UserError:
    return UserError(
        f"secrets.{name} comes from {path}, which {why}",
        remedy=f"Put it there, or say where it is: secrets.{name}=file:PATH or env:NAME",
    )


def _file(source: str) -> Path | None:
    return Path(source.removeprefix("file:")).expanduser() if source.startswith("file:") else None
