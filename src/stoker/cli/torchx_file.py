"""The entry point through which TorchX reads the text of a component. Stoker's is named by its module."""

from pathlib import Path

from torchx.util.io import get_abspath

COMPONENT = "stoker.cli.torchx"


def contents(name: str) -> str | None:
    """The text of Stoker's component, or of a file that comes with TorchX; None if there is no such file."""
    file = Path(__file__).with_name("torchx.py") if name == COMPONENT else Path(get_abspath(name))
    return file.read_text() if file.is_file() else None
