"""The user's own defaults for runs on Kubernetes, from ~/.config/stoker/config.yaml.

They rank below everything that a run file, its base and overrides give, and above Stoker's own defaults.
"""

import os
from dataclasses import dataclass
from pathlib import Path

from stoker.spec.document import read_document
from stoker.spec.errors import UserError
from stoker.spec.keys import nearest

KIND = "kubernetes"
KEYS = ("context", "namespace", "image", "registry", "volume")
"""The keys of `on` that the file may have, without `on`."""


@dataclass(frozen=True, kw_only=True, slots=True)
class UserDefault:
    key: str
    """As in a run file: on.registry."""
    value: str
    file: Path
    line: int | None


def config_file() -> Path:
    """Where the file is, or would be."""
    home = os.environ.get("XDG_CONFIG_HOME", "")
    return Path(home if os.path.isabs(home) else os.path.expanduser("~/.config"), "stoker", "config.yaml")


def user_defaults() -> list[UserDefault]:
    """All that the file has; none without a file. Raises UserError for an unknown key."""
    file = config_file()
    if not os.path.lexists(file):
        return []
    document = read_document(file, kind="config file", example="registry: registry.example/team/runs")
    for key, value in document.values.items():
        where = f"{file}:{document.lines[(key,)]}"
        if key not in KEYS:
            near = nearest(key, [*KEYS])
            remedy = f"Did you mean {near}?" if near else f"It takes {', '.join(KEYS)}"
            raise UserError(f"{where}: {key} is unknown", remedy=remedy)
        if not isinstance(value, str | None):
            raise UserError(f"{where}: {key} is no text", remedy="Write text, in quotes if it looks like a number")
    return [
        UserDefault(key=f"on.{key}", value=value, file=file, line=document.lines[(key,)])
        for key, value in document.values.items()
        if value is not None
    ]


def user_default(key: str) -> str | None:
    """The value of one key, such as context; None where the file does not have it."""
    return next((default.value for default in user_defaults() if default.key == f"on.{key}"), None)
