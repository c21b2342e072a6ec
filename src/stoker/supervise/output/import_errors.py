"""Recognises a script that cannot be imported: restarting it would not help."""

import re
import shlex
from typing import NamedTuple

TRACEBACK = "Traceback (most recent call last):\n"
NOISE = re.compile(r"\x1b\[[\d;]{0,20}m|^\[rank\d+\]: ", re.MULTILINE)  # colours, and torch's prefix of each line
ERROR = re.compile(
    r"^(ModuleNotFoundError|ImportError|SyntaxError|IndentationError|TabError)(?:: (.*))?$", re.MULTILINE
)
LOCATION = re.compile(r'^ +File "([^"\n]+)", line (\d+)', re.MULTILINE)
MISSING_MODULE = re.compile(r"No module named '([\w.]+)'$")


class ScriptImportError(NamedTuple):
    problem: str
    remedy: str


def find_import_error(script: str, output: str) -> ScriptImportError | None:
    """Why the script could not be imported, from the end of a worker's output; None if that is not why it failed."""
    trace = NOISE.sub("", output).rpartition(TRACEBACK)[2]
    error = ERROR.search(trace)
    if error is None or not _is_raised_by_import(script, trace):
        return None
    kind, message = error[1], error[2] or ""
    if missing := MISSING_MODULE.search(message):
        package = missing[1].partition(".")[0]
        return ScriptImportError(
            f"script {script} needs the module {missing[1]}, which is not installed",
            remedy=f"Install it, for example with: pip install {package}; or put it beside the script",
        )
    location = "" if kind.endswith("ImportError") else " in {}, line {}".format(*LOCATION.findall(trace)[-1])
    return ScriptImportError(
        f"script {script} cannot be imported: {kind}{location}: {message}",
        remedy=f"Try it with: python {shlex.quote(script)}",
    )


def _is_raised_by_import(script: str, trace: str) -> bool:
    """By an import statement at the script's top level, or by the script itself when it is not valid Python."""
    frame = rf' +File "{re.escape(script)}", line \d+'
    return bool(
        re.match(rf"{frame}, in <module>\n +(?:import|from) ", trace)
        or re.search(rf"^{frame}\n(?:.*\n){{1,3}}(?:Syntax|Indentation|Tab)Error", trace, re.MULTILINE)
    )
