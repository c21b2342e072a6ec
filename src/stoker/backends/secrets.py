"""Secrets: read when a run is submitted, passed on in the environment, written to no file."""

import os
import shlex
import stat
from collections.abc import Mapping
from pathlib import Path

from stoker.spec.errors import UserError
from stoker.spec.files import read_text
from stoker.spec.run import AnySpec

MAX_BYTES = 128 * 1024  # of one variable with its name: the limit of Linux


def resolve(spec: AnySpec) -> dict[str, str]:
    """The values, by name."""
    return read(spec.secrets)


def read(sources: Mapping[str, str]) -> dict[str, str]:
    """Name -> value, from name -> `env:NAME` or `file:PATH`. No message holds a value."""
    return {name: _value(name, source) for name, source in sources.items()}


def warnings(spec: AnySpec) -> list[str]:
    """A warning for each secret file that other users can read."""
    files = {name: path for name, source in spec.secrets.items() if (path := _file(source))}
    return [
        f"secrets.{name}: other users can read {path}. Run: chmod 600 {shlex.quote(str(path))}"
        for name, path in files.items()
        if path.is_file() and path.stat().st_mode & (stat.S_IRGRP | stat.S_IROTH)
    ]


def _value(name: str, source: str) -> str:
    path = _file(source)
    value = _from_file(name, path) if path else _from_environment(name, source.removeprefix("env:"))
    if "\0" in value:
        raise UserError(
            f"secrets.{name} contains a zero byte, which an environment variable cannot hold",
            remedy="Encode it, for example with: base64",
        )
    if len(os.fsencode(value)) + len(name) + 2 > MAX_BYTES:
        raise UserError(
            f"secrets.{name} is longer than an environment variable can be ({MAX_BYTES // 1024} KiB)",
            remedy=f"Give the workers the file's name instead: env.{name}=PATH",
        )
    return value


def _from_environment(name: str, variable: str) -> str:
    value = os.environ.get(variable)
    if not value:
        raise UserError(
            f"secrets.{name} comes from the variable {variable}, which is {'not set' if value is None else 'empty'}",
            remedy=f"Set it with: export {variable}=…, or read it from a file: secrets.{name}=file:PATH",
        )
    return value


def _from_file(name: str, path: Path) -> str:
    try:
        if not stat.S_ISREG(path.stat().st_mode):  # a pipe can be read once only, and a resumed run reads it again
            raise _unusable(name, path, "is not a regular file")
        value = read_text(path).removesuffix("\n")
    except OSError as e:
        raise _unusable(name, path, f"cannot be read: {e.strerror}") from e
    except UnicodeDecodeError:
        raise _unusable(name, path, "is not UTF-8 text") from None
    if not value:
        raise _unusable(name, path, "is empty")
    return value


def _unusable(name: str, path: Path, why: str) -> UserError:
    return UserError(
        f"secrets.{name} comes from {path}, which {why}",
        remedy=f"Write the secret to that file, or name another source: secrets.{name}=file:PATH or env:NAME",
    )


def _file(source: str) -> Path | None:
    """`~` of an unknown user stays as it is."""
    return Path(os.path.expanduser(source.removeprefix("file:"))) if source.startswith("file:") else None
