"""rich's console, made safe: what it draws itself goes to the terminal, the text that it is given is escaped first."""

import sys
from collections.abc import Iterable
from typing import IO, cast

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment

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
