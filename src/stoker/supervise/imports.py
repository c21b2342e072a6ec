"""A script that cannot even be imported: to start it again would not help."""

import re

from stoker.spec.errors import UserError

HEADER = "Traceback (most recent call last):\n"
NOISE = re.compile(r"\x1b\[[\d;]{0,20}m|^\[rank\d+\]: ", re.MULTILINE)  # colours, and what torch puts before lines
ERROR = re.compile(
    r"^(ModuleNotFoundError|ImportError|SyntaxError|IndentationError|TabError)(?:: (.*))?$", re.MULTILINE
)
PLACE = re.compile(r'^ +File "([^"\n]+)", line (\d+)', re.MULTILINE)
MISSING = re.compile(r"No module named '([\w.]+)'$")


def import_fault(script: str, said: str) -> UserError | None:
    """From the end of what a worker has printed: why its script could not be imported, if that was it."""
    trace = NOISE.sub("", said).rpartition(HEADER)[2]
    error = ERROR.search(trace)
    if error is None or not _in_an_import(script, trace):
        return None
    kind, words = error[1], error[2] or ""
    if missing := MISSING.search(words):
        package = missing[1].partition(".")[0]
        return UserError(
            f"script {script} needs the module {missing[1]}, and there is none",
            remedy=f"Install it, such as with: pip install {package}; or put it beside the script",
        )
    place = "" if kind.endswith("ImportError") else " in {}, line {}".format(*PLACE.findall(trace)[-1])
    return UserError(
        f"script {script} cannot be imported: {kind}{place}: {words}", remedy=f"Try it with: python {script}"
    )


def _in_an_import(script: str, trace: str) -> bool:
    """Its own top level says `import`; or it is itself no Python."""
    own = rf' +File "{re.escape(script)}", line \d+'
    return bool(
        re.match(rf"{own}, in <module>\n +(?:import|from) ", trace)
        or re.search(rf"^{own}\n(?:.*\n){{1,3}}(?:Syntax|Indentation|Tab)Error", trace, re.MULTILINE)
    )
