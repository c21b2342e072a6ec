"""Parses the command of a container: the launcher, its options, the script and its arguments."""

import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from stoker.spec.errors import UserError

MODULES = ("torch.distributed.run", "torch.distributed.launch", "torchelastic.distributed.launch")
SHELLS = ("sh", "bash", "dash", "ash")
FLAGS = {"standalone", "use_env", "virtual_local_rank"}
NOT_A_FILE = {"m": "-m", "module": "--module", "no_python": "--no_python", "run_path": "--run_path"}
SHORT = {"r": "redirects", "t": "tee"}
SHELL_WORDS = re.compile(r"[;&|<>`\n]|\$\(|^\s*(?:if|for|while|export|cd|source)\b")


@dataclass(kw_only=True, slots=True)
class LauncherCommand:
    script: str
    args: list[str]
    options: dict[str, str] = field(default_factory=dict)
    """Of the launcher, with underscores and without leading dashes."""
    script_index: int | None
    """Index of the script in the command; None if the command is one string for a shell."""


def read_command(argv: Sequence[str], where: str) -> LauncherCommand:
    """`where` names the container in messages."""
    arguments = [str(argument) for argument in argv]
    plain = _without_shell(arguments, where)
    rest, launcher = _without_launcher(plain)
    options: dict[str, str] = {}
    while launcher and rest and rest[0].startswith("-"):
        rest = _option(rest, options, where)
    if not rest or rest[0].startswith("-"):
        raise UserError(
            f"{where} names no script",
            remedy="Give it a command, such as [torchrun, --nproc_per_node=8, train.py], or write a run file by hand",
        )
    if not launcher and not rest[0].endswith(".py"):
        raise UserError(
            f"{where} runs {rest[0]}, which is neither torchrun nor a Python script",
            remedy="Write the torchrun command there, or write a run file by hand: stoker schema shows its keys",
        )
    script_index = len(arguments) - len(rest) if plain is arguments else None
    return LauncherCommand(script=rest[0], args=rest[1:], options=options, script_index=script_index)


def expanded(text: str, variables: Mapping[str, str]) -> tuple[str, list[str]]:
    """The text with each $(NAME) replaced by its value, as Kubernetes does; and the names that are not known."""
    unknown: list[str] = []

    def value(match: re.Match[str]) -> str:
        if match[0] == "$$":
            return "$"
        if match[1] not in variables:
            unknown.append(match[1])
        return variables.get(match[1], match[0])

    return re.sub(r"\$(?:\$|\(([-._a-zA-Z][-._a-zA-Z0-9]*)\))", value, text), unknown


def option_name(argument: str) -> str | None:
    """`--rdzv-backend=c10d` -> rdzv_backend; None for an argument that is not an option."""
    if not argument.startswith("-"):
        return None
    name = argument.lstrip("-").partition("=")[0]
    return SHORT.get(name, name).replace("-", "_")


def _without_shell(argv: list[str], where: str) -> list[str]:
    if len(argv) < 3 or argv[0].rpartition("/")[2] not in SHELLS or not re.fullmatch(r"-\w*c", argv[1]):
        return argv
    text = argv[2].replace("\\\n", " ").strip()
    if SHELL_WORDS.search(text):
        raise UserError(
            f"{where} is a shell script of several commands",
            remedy="Leave only the torchrun command there, and move the others into the image or the script",
        )
    try:
        parsed = shlex.split(text)
    except ValueError as e:
        raise UserError(
            f"{where} runs a shell command that cannot be parsed ({e})", remedy="Close its quotes, or escape the quote"
        ) from e
    return parsed[1:] if parsed[:1] == ["exec"] else parsed


def _without_launcher(argv: list[str]) -> tuple[list[str], bool]:
    """The arguments after the launcher, and whether there is one. Options alone are for the image's entrypoint."""
    first = argv[0].rpartition("/")[2] if argv else ""
    if first == "torchrun":
        return argv[1:], True
    if re.fullmatch(r"python[\d.]*", first):
        rest = argv[1:]
        while rest and rest[0] in ("-u", "-B", "-O", "-P", "-I"):
            rest = rest[1:]
        if rest[:1] == ["-m"] and rest[1:2] and rest[1] in MODULES:
            return rest[2:], True
        return rest, rest[:1] == ["-m"]
    return argv, first.startswith("-")


def _option(argv: list[str], options: dict[str, str], where: str) -> list[str]:
    name, value = option_name(argv[0]) or "", argv[0].partition("=")[2]
    if name in NOT_A_FILE:
        module = argv[1] if len(argv) > 1 else "something"
        raise UserError(
            f"{where} runs {module} with {NOT_A_FILE[name]}, and Stoker runs a file",
            remedy=f"Run a file of two lines: import runpy, and runpy.run_module({module!r}, run_name='__main__')",
        )
    if "=" in argv[0] or name in FLAGS:
        options[name] = value
        return argv[1:]
    options[name] = argv[1] if len(argv) > 1 else ""
    return argv[2:]
