"""Kills a child process when its parent dies, even if the parent is killed with SIGKILL."""

import ctypes
import os
import signal
import time
from contextlib import suppress

PR_SET_PDEATHSIG = 1
GUARD_POLL_S = 0.5
MAX_INHERITED_FILES = 4096  # closed by the guard
# Loaded here: nothing may be imported or loaded between fork and exec. Only Linux has prctl.
_prctl = getattr(ctypes.CDLL(None, use_errno=True), "prctl", None)


def die_with_parent(parent: int) -> None:
    """Called in the child: it dies when its parent is gone. Linux does that itself; elsewhere a guard process does."""
    if _prctl is not None:
        _prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    else:
        _start_guard(os.getpid(), parent)
    if os.getppid() != parent:  # it died before the lines above
        os._exit(1)


def _start_guard(child: int, parent: int) -> None:
    """Starts a process that watches both. It is not a child of `child`, which may wait for all its own children."""
    intermediate = os.fork()
    if intermediate:
        os.waitpid(intermediate, 0)
        return
    if os.fork() == 0:
        os.setsid()  # Ctrl-C in a terminal does not reach it
        os.closerange(0, MAX_INHERITED_FILES)
        _guard(child, parent)
    os._exit(0)


def _guard(child: int, parent: int) -> None:
    while _is_alive(child):
        if not _is_alive(parent):
            with suppress(OSError):
                os.kill(child, signal.SIGKILL)
            return
        time.sleep(GUARD_POLL_S)


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return True
