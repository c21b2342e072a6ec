"""Finds the error in the output of a process: its own, or the symptom of a failure elsewhere. Pure."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

TRACEBACK = "Traceback (most recent call last):"
COLOUR = re.compile(r"\x1b\[[\d;]{0,20}m")
RANK = re.compile(r"^\[(?:rank|default)?\d{1,6}\]:? ?")
"""torch prints `[rank0]: ` before each line of a traceback, its agent and a supervisor `[0] `."""
NAMED = re.compile(r"(?:\w+\.)*\w*(?:Error|Exception|Interrupt|Exit|Fault)\b(?! in thread| ignored in)")
SUPERVISOR = re.compile(r"stoker: ")
NOTE = re.compile(r"stoker: node \d+ \([^)]*\) (?!.*giving up$)")
"""Routine reports of a supervisor: which node leads, and which follow."""
ABORT = re.compile(r"terminate called ")
"""C++: an uncaught exception, or threads that were still running when Python ended."""
WHAT = re.compile(r"what\(\): ")
SYMPTOMS = (
    r"closed by (?:remote )?peer|peer closed the connection|reset by peer|Broken pipe",
    r"Connection was likely closed|recvValue failed|[Ff]ailed to recv, got 0 bytes|Socket [Tt]imeout",
    r"ncclRemoteError|ncclSystemError|unhandled system error|remote process exit",
    r"NCCL communicator (?:was )?aborted|Watchdog caught collective",
    r"^(?:\w+\.)*Dist(?:Network|Store)Error",
    r"gloo/transport|gloo::|Timed out waiting \d+ ?ms for (?:recv|send) operation",
    r"^(?:\w+\.)*(?:ChildFailedError|SignalException|RendezvousConnectionError|RendezvousClosedError)",
)
SYMPTOM = re.compile("|".join(SYMPTOMS))
"""What torch, gloo, NCCL and Python print when a peer is lost, and what torch's agent prints about its workers."""


@dataclass(frozen=True, kw_only=True, slots=True)
class LogError:
    line: str
    kind: Literal["own", "abort", "symptom"]
    """`own`: an exception of the process itself. `abort`: C++ ended the process, which rarely shows why. `symptom`: a
    broken connection, as every peer of a failed process prints."""


def error_in(lines: Sequence[str]) -> LogError | None:
    """The last error of the process itself, else the last symptom, else the abort; None when there is none."""
    last = {error.kind: error for error in _errors(lines)}
    return last.get("own") or last.get("symptom") or last.get("abort")


def last_line(lines: Sequence[str]) -> str:
    """The last informative line: not a routine report of a supervisor."""
    clean = (_clean(line).strip() for line in reversed(lines))
    return next((line for line in clean if line and not NOTE.match(line)), "")


def _errors(lines: Sequence[str]) -> Iterator[LogError]:
    inside = False  # in a traceback; its first line that is not indented names the exception
    for number, raw in enumerate(lines):
        line = _clean(raw)
        text = line.strip()
        if text == TRACEBACK:
            inside = True
        elif not text or (inside and line[:1].isspace()):
            continue
        elif ABORT.match(text):
            after = _clean(lines[number + 1]).strip() if number + 1 < len(lines) else ""
            line = f"{text} {after}" if WHAT.match(after) else text
            yield LogError(line=line, kind="symptom" if SYMPTOM.search(line) else "abort")
        elif inside or NAMED.match(text) or (SUPERVISOR.match(text) and not NOTE.match(text)):
            inside = False
            yield LogError(line=text, kind="symptom" if SYMPTOM.search(text) else "own")


def _clean(line: str) -> str:
    return RANK.sub("", COLOUR.sub("", line)).rstrip()
