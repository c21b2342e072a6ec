"""`stoker`: finds the verb, runs it, and prints an error as one line. Parsing needs only the standard library."""

import argparse
import contextlib
import difflib
import errno
import importlib
import keyword
import os
import re
import signal
import sys
from collections.abc import Iterator, Sequence
from typing import Any, NoReturn

from stoker import __version__
from stoker.cli.screen import safe, screens
from stoker.spec import contract
from stoker.spec.errors import RunFailed, SavedForLater, StokerError, UserError
from stoker.spec.extras import missing_extra
from stoker.spec.trust import trusting

GROUPS: dict[str, dict[str, tuple[str, str]]] = {
    "Train": {
        "train": ("stoker.cli.train", "train a model here, now; the same command again resumes it"),
        "launch": ("stoker.cli.launch", "train in the background; the run outlives the terminal"),
        "prepare": ("stoker.cli.prepare", "turn text into token shards"),
    },
    "Watch": {
        "ps": ("stoker.cli.ps", "all runs, one line each"),
        "status": ("stoker.cli.status", "the state of a run, or of all"),
        "why": ("stoker.cli.why", "why a run waits, fails or is slow, and what to type"),
        "logs": ("stoker.cli.logs", "what the workers printed"),
        "events": ("stoker.cli.events", "what happened to a run"),
        "top": ("stoker.cli.top", "CPU, memory and GPU of each worker"),
        "env": ("stoker.cli.env", "environment, versions and devices of a worker"),
        "stop": ("stoker.cli.stop", "save and stop a run"),
        "audit": ("stoker.cli.audit", "prove that every sample was used exactly once"),
        "replay": ("stoker.cli.replay", "show the documents of a step, and compute its loss again"),
    },
    "Cluster": {
        "cp": ("stoker.cli.cp", "copy files to and from a run's volume, or from a bucket to it"),
        "scale": ("stoker.cli.scale", "change the number of nodes of a run while it runs"),
        "net": ("stoker.cli.net", "test names, ports, latency and bandwidth between nodes"),
        "addon": ("stoker.cli.addon", "create an etcd server in the cluster, for runs that need one"),
        "shell": ("stoker.cli.shell", "run a shell or a command in a pod with the run's image and volume"),
    },
    "Use": {
        "generate": ("stoker.cli.generate", "generate text, streamed"),
        "eval": ("stoker.cli.eval", "loss and perplexity on held-out or any other text"),
        "export": ("stoker.cli.export", "write a folder that transformers loads, proven equal"),
        "import": ("stoker.cli.import_model", "make a run of a model that transformers wrote"),
    },
    "Run files": {
        "init": ("stoker.cli.init", "write a run file for your data"),
        "explain": ("stoker.cli.explain", "where a value of a run file comes from"),
        "presets": ("stoker.cli.presets", "the built-in models and runs"),
        "schema": ("stoker.cli.schema", "JSON Schema of a run file, for editors"),
        "import-config": (
            "stoker.cli.import_config",
            "convert a PyTorchJob, ElasticJob or torchx command to a run file",
        ),
    },
    "Machine": {
        "image": ("stoker.cli.image", "build a container image of your code, without a daemon"),
        "check": ("stoker.cli.check", "what is missing on this machine, or in a cluster"),
        "completion": ("stoker.cli.completion", "a script that completes verbs, options and runs in your shell"),
    },
}
VERBS = {verb: entry for group in GROUPS.values() for verb, entry in group.items()}
MODEL_VERBS = ("generate", "eval", "export", "import")
"""Verbs whose code imports torch. Their arguments are in MODEL_ARGUMENTS, which does not."""
MODEL_ARGUMENTS = "stoker.cli.model_arguments"

REMEDIES = {
    errno.ENOSPC: "Free some disk space, then run it again",
    errno.EDQUOT: "Free some disk space, then run it again",
    errno.EACCES: "Check its permissions, or choose another place",
    errno.EPERM: "Check its permissions, or choose another place",
    errno.EROFS: "Choose a place that you may write to",
    errno.ENAMETOOLONG: "Choose a shorter name",
    errno.ELOOP: "Check its symbolic links",
    errno.ENOENT: "Check the path",
    errno.ENOTDIR: "Check the path",
    errno.EISDIR: "Check the path",
    errno.EIO: "Check the disk",
    errno.EMFILE: "Allow more open files: ulimit -n 4096",
}
LONG_WORD = re.compile(r"(\S{150})\S{100,}(\S{50})")


def main(argv: Sequence[str] | None = None) -> int:
    with screens():
        code = _exit_code(sys.argv[1:] if argv is None else list(argv))
        _flush_or_discard()
        return code


def _exit_code(argv: list[str]) -> int:
    """Runs the command and reports errors. TorchX's component, which is a command of its own, does the same."""
    try:
        code = _run(argv)
        sys.stdout.flush()
        return code
    except StokerError as e:
        return report_error(e)
    except ModuleNotFoundError as e:
        missing = missing_extra(e)
        if missing is None:
            raise
        return report_error(missing)
    except KeyboardInterrupt:
        # CPython remembers a KeyboardInterrupt that leaves an exec of text, as of a dataclass that is being imported.
        # `python -m` then ends with SIGINT instead of our exit code, unless another exec of text follows.
        exec("")
        return contract.EXIT_INTERRUPTED
    except BrokenPipeError:  # `stoker logs … | head` has read enough
        return contract.EXIT_DONE
    except MemoryError:
        remedy = "Close other programs, or use a smaller model, batch or file"
        return report_error(UserError("the memory of this machine ran out", remedy=remedy))
    except OSError as e:
        if e.errno not in REMEDIES:
            raise
        return report_error(UserError(f"{e.filename or 'writing'}: {e.strerror}", remedy=REMEDIES[e.errno]))


def _flush_or_discard() -> None:
    """Output that cannot be written must not fail again when the interpreter flushes it at its end."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError:
            devnull = os.open(os.devnull, os.O_WRONLY)
            os.dup2(devnull, stream.fileno())
            os.close(devnull)


def _run(argv: list[str]) -> int:
    if argv[:1] == ["help"] and len(argv) > 1:
        argv = [argv[1], "--help"]
    if not argv or argv[0] in ("-h", "--help", "help"):
        print(_help())
        return contract.EXIT_DONE
    if any("\0" in argument for argument in argv):
        raise UserError("an argument has a zero byte", remedy="Remove it")
    if argv[0] in ("-V", "--version"):
        print(f"stoker {__version__}")
        return contract.EXIT_DONE
    verb = argv[0]
    if verb not in VERBS:
        near = difflib.get_close_matches(verb, VERBS, n=1)
        raise UserError(f"'{verb}' is not a verb", remedy=f"Did you mean {near[0]}?" if near else "See: stoker --help")
    _check_folder()
    module_name, line = VERBS[verb]
    with _exit_on_interrupt():
        parser = _Parser(prog=f"stoker {verb}", description=line[0].upper() + line[1:] + ".")
        add_arguments(verb, parser)
        arguments = parser.parse_intermixed_args(argv[1:])
        module: Any = importlib.import_module(module_name)
    name = f"{verb}_" if keyword.iskeyword(verb) else verb.replace("-", "_")
    with trusting(getattr(arguments, "trust", False)):
        code: int = getattr(module, name)(arguments)
    return code


def add_arguments(verb: str, parser: argparse.ArgumentParser) -> None:
    """Add the arguments of a verb. Needs no optional package."""
    module: Any = importlib.import_module(MODEL_ARGUMENTS if verb in MODEL_VERBS else VERBS[verb][0])
    getattr(module, f"{verb.replace('-', '_')}_arguments")(parser)


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        super().error(_short(message))


def _check_folder() -> None:
    """Relative paths, such as ./runs, need the current folder."""
    try:
        os.getcwd()
    except FileNotFoundError:
        raise UserError("the current folder no longer exists", remedy="Change to one that does: cd ~") from None


@contextlib.contextmanager
def _exit_on_interrupt() -> Iterator[None]:
    """Ctrl-C ends the process at once: numpy and argparse turn a KeyboardInterrupt into errors of their own."""
    before = signal.getsignal(signal.SIGINT)
    if before is not signal.default_int_handler:  # ignored, as with nohup, or another handler
        yield
        return
    signal.signal(signal.SIGINT, lambda *_: os._exit(contract.EXIT_INTERRUPTED))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _help() -> str:
    lines = [
        "usage: stoker VERB …",
        "",
        "Train language models on your own data, and supervise the run until it is done.",
    ]
    for title, verbs in GROUPS.items():
        lines += ["", f"{title}:"] + [f"  {verb:<13} {line}" for verb, (_, line) in verbs.items()]
    return "\n".join([*lines, "", "stoker help VERB explains a verb; stoker --version prints the version."])


def _short(message: str) -> str:
    """Without the middle of very long words, such as a name of thousands of characters."""
    return LONG_WORD.sub(r"\1…\2", message)


def report_error(error: StokerError) -> int:
    """Print it to stderr; returns the exit code."""
    with contextlib.suppress(OSError):  # stderr may be closed
        print(safe("stoker: " + _short(str(error))), file=sys.stderr, flush=True)
    if isinstance(error, RunFailed):
        return contract.EXIT_FAILED
    return contract.EXIT_SAVED if isinstance(error, SavedForLater) else contract.EXIT_USER
