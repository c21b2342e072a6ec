"""Reading a file while it grows."""

import json
from pathlib import Path

from stoker.rundir import Record


class Tail:
    """Hands out the whole lines that were added since the last look."""

    def __init__(self, path: Path, *, start: int = 0) -> None:
        self._path = path
        self._position = start

    def lines(self) -> list[str]:
        try:
            with open(self._path, "rb") as file:
                file.seek(self._position)
                data = file.read()
        except FileNotFoundError:
            return []
        whole = data[: data.rfind(b"\n") + 1]
        self._position += len(whole)
        return whole.decode(errors="replace").splitlines()

    def records(self) -> list[Record]:
        found = []
        for line in self.lines():
            try:
                found.append(json.loads(line))
            except json.JSONDecodeError:
                continue  # torn by a kill
        return found

    @classmethod
    def from_now(cls, path: Path) -> "Tail":
        return cls(path, start=path.stat().st_size if path.exists() else 0)
