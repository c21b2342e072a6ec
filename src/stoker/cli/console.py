"""rich's console, made safe: its own control sequences reach the terminal, the text that it is given is escaped."""

import sys
from collections.abc import Iterable, Sequence
from typing import IO, cast

from rich.box import SIMPLE_HEAD
from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.table import Table

from stoker.cli import output
from stoker.cli.screen import Screen, safe


class SafeConsole(Console):
    """Text is never read as markup: [bold] may be the name of a file."""

    def __init__(self, *, stderr: bool = False) -> None:
        stream = sys.stderr if stderr else sys.stdout
        file = cast(IO[str], stream.direct) if isinstance(stream, Screen) else stream
        super().__init__(file=file, markup=False, highlight=False, emoji=False)

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        for segment in super().render(renderable, options):
            yield segment if segment.control else segment._replace(text=safe(segment.text))


def print_table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """As wide as the terminal; elsewhere plain columns, for grep and cut."""
    if not sys.stdout.isatty():
        print(output.table(head, rows))
        return
    table = Table(*head, box=SIMPLE_HEAD, pad_edge=False)
    for row in rows:
        table.add_row(*row)
    SafeConsole().print(table)
