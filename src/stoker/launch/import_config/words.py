"""The command of a container: which launcher, with which options, of which script."""

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
class Launch:
    script: str
    args: list[str]
    options: dict[str, str] = field(default_factory=dict)
    """The launcher's own, with underscores and without dashes."""
    at: int | None
    """Which word the script is; None where a shell's one word holds all."""


def read_command(words: Sequence[str], where: str) -> Launch:
    """`where` is what messages call the place of the words."""
    given = [str(word) for word in words]
    plain = _without_shell(given, where)
    rest, launcher = _without_launcher(plain)
    options: dict[str, str] = {}
    while launcher and rest and rest[0].startswith("-"):
        rest = _option(rest, options, where)
    if not rest or rest[0].startswith("-"):
        raise UserError(
            f"{where} names no script",
            remedy="Write what is run there, such as [torchrun, --nproc_per_node=8, train.py], or a run file by hand",
        )
    if not launcher and not rest[0].endswith(".py"):
        raise UserError(
            f"{where} runs {rest[0]}, which is neither torchrun nor a Python script",
            remedy="Put the torchrun line there itself, or write a run file by hand: stoker schema shows its keys",
        )
    at = len(given) - len(rest) if plain is given else None
    return Launch(script=rest[0], args=rest[1:], options=options, at=at)


def expanded(text: str, known: Mapping[str, str]) -> tuple[str, list[str]]:
    """With the values of its $(NAME)s, as Kubernetes puts them there; and the names that are not known."""
    unknown: list[str] = []

    def value(found: re.Match[str]) -> str:
        if found[0] == "$$":
            return "$"
        if found[1] not in known:
            unknown.append(found[1])
        return known.get(found[1], found[0])

    return re.sub(r"\$(?:\$|\(([-._a-zA-Z][-._a-zA-Z0-9]*)\))", value, text), unknown


def option_name(word: str) -> str | None:
    """`--rdzv-backend=c10d` -> rdzv_backend; None for a word that is no option."""
    if not word.startswith("-"):
        return None
    name = word.lstrip("-").partition("=")[0]
    return SHORT.get(name, name).replace("-", "_")


def _without_shell(words: list[str], where: str) -> list[str]:
    if len(words) < 3 or words[0].rpartition("/")[2] not in SHELLS or not re.fullmatch(r"-\w*c", words[1]):
        return words
    text = words[2].replace("\\\n", " ").strip()
    if SHELL_WORDS.search(text):
        raise UserError(
            f"{where} is a shell script of several commands",
            remedy="Put the torchrun line alone into it; what comes before belongs in the image or in the script",
        )
    try:
        found = shlex.split(text)
    except ValueError as e:
        raise UserError(
            f"{where} gives the shell a line that it cannot read ({e})", remedy="Close its quotes, or escape the quote"
        ) from e
    return found[1:] if found[:1] == ["exec"] else found


def _without_launcher(words: list[str]) -> tuple[list[str], bool]:
    """What follows the launcher, and whether there is one; without a command it is the image's entrypoint."""
    first = words[0].rpartition("/")[2] if words else ""
    if first == "torchrun":
        return words[1:], True
    if re.fullmatch(r"python[\d.]*", first):
        rest = words[1:]
        while rest and rest[0] in ("-u", "-B", "-O", "-P", "-I"):
            rest = rest[1:]
        if rest[:1] == ["-m"] and rest[1:2] and rest[1] in MODULES:
            return rest[2:], True
        return rest, rest[:1] == ["-m"]
    return words, first.startswith("-")


def _option(words: list[str], options: dict[str, str], where: str) -> list[str]:
    name, value = option_name(words[0]) or "", words[0].partition("=")[2]
    if name in NOT_A_FILE:
        what = words[1] if len(words) > 1 else "something"
        raise UserError(
            f"{where} runs {what} with {NOT_A_FILE[name]}, and Stoker runs a file",
            remedy=f"Run a file of two lines: import runpy, and runpy.run_module({what!r}, run_name='__main__')",
        )
    if "=" in words[0] or name in FLAGS:
        options[name] = value
        return words[1:]
    options[name] = words[1] if len(words) > 1 else ""
    return words[2:]
