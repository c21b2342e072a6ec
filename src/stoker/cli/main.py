"""`stoker`: find the verb, run it, say in one line what went wrong. Only the standard library is imported to parse."""

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
from stoker.spec.errors import MissingExtra, RunFailed, SavedForLater, StokerError, UserError
from stoker.spec.trust import trusting

GROUPS: dict[str, dict[str, tuple[str, str]]] = {
    "Train": {
        "train": ("stoker.cli.train", "train a model here, now; the same command again goes on"),
        "launch": ("stoker.cli.launch", "train in the background; the run outlives the terminal"),
        "prepare": ("stoker.cli.prepare", "turn text into token shards"),
    },
    "Watch": {
        "ps": ("stoker.cli.watch", "all runs, one line each"),
        "status": ("stoker.cli.watch", "where a run stands, or all of them"),
        "why": ("stoker.cli.why", "why a run waits, fails or is slow, and what to type"),
        "logs": ("stoker.cli.logs", "what the workers printed"),
        "events": ("stoker.cli.events", "what happened to a run"),
        "top": ("stoker.cli.top", "CPU, memory and GPU of each worker"),
        "env": ("stoker.cli.env", "environment, versions and devices that a worker finds"),
        "stop": ("stoker.cli.watch", "save and end a run"),
        "audit": ("stoker.cli.audit", "prove that every sample was used exactly once"),
        "replay": ("stoker.cli.replay", "look into a step: its documents, and its loss computed anew"),
    },
    "Cluster": {
        "cp": ("stoker.cli.cp", "files to and from a run's volume; from a bucket, inside the cluster"),
        "scale": ("stoker.cli.scale", "more nodes or fewer for a run, while it runs"),
        "net": ("stoker.cli.net", "names, ports, latency and bandwidth between nodes, and what is wrong there"),
        "addon": ("stoker.cli.addon", "an etcd server in the cluster, for runs that ask for one"),
        "shell": ("stoker.cli.shell", "a shell, or a command, in a pod with the run's image and volume"),
    },
    "Use": {
        "generate": ("stoker.cli.generate", "write text, streamed as it comes"),
        "eval": ("stoker.cli.evaluate", "loss and perplexity on held-out or any other text"),
        "export": ("stoker.cli.export", "a folder that transformers loads, proven equal"),
        "import": ("stoker.cli.importing", "a model that transformers wrote, as a run"),
    },
    "Run files": {
        "init": ("stoker.cli.spec", "write a run file for your data"),
        "explain": ("stoker.cli.spec", "where a value of a run file comes from"),
        "presets": ("stoker.cli.spec", "the models and runs that have a name"),
        "schema": ("stoker.cli.spec", "JSON Schema of a run file, for editors"),
        "import-config": ("stoker.cli.import_config", "a PyTorchJob, ElasticJob or torchx command as a run file"),
    },
    "Machine": {
        "image": ("stoker.cli.image", "your code as a container image, without a daemon"),
        "check": ("stoker.cli.check", "what this machine, or a cluster, lacks"),
        "completion": ("stoker.cli.completion", "a script that completes verbs, options and runs in your shell"),
    },
}
VERBS = {verb: entry for group in GROUPS.values() for verb, entry in group.items()}
TRAIN_PARTS = ("torch", "numpy", "pyarrow", "tokenizers", "tensorboard", "safetensors", "huggingface_hub")


REMEDIES = {
    errno.ENOSPC: "Make room on the disk, then run it again",
    errno.EDQUOT: "Make room on the disk, then run it again",
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
        code = _answer(sys.argv[1:] if argv is None else list(argv))
        _let_go()
        return code


def _answer(argv: list[str]) -> int:
    """The only place that catches StokerError, but for TorchX's component, which is a command of its own."""
    try:
        code = _run(argv)
        sys.stdout.flush()
        return code
    except StokerError as e:
        return complain(e)
    except ModuleNotFoundError as e:
        part = (e.name or "").split(".")[0]
        if part not in TRAIN_PARTS:
            raise
        return complain(MissingExtra(part, "train"))
    except KeyboardInterrupt:
        return contract.EXIT_INTERRUPTED
    except BrokenPipeError:  # `stoker logs … | head` has read enough
        return contract.EXIT_DONE
    except MemoryError:
        remedy = "Close other programs, or use a smaller model, batch or file"
        return complain(UserError("the memory of this machine ran out", remedy=remedy))
    except OSError as e:
        if e.errno not in REMEDIES:
            raise
        return complain(UserError(f"{e.filename or 'writing'}: {e.strerror}", remedy=REMEDIES[e.errno]))


def _let_go() -> None:
    """Output that nobody takes any more must not fail once more while the interpreter ends."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError:
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, stream.fileno())
            os.close(nowhere)


def _run(argv: list[str]) -> int:
    if argv[:1] == ["help"] and len(argv) > 1:
        argv = [argv[1], "--help"]
    if not argv or argv[0] in ("-h", "--help", "help"):
        print(_help())
        return contract.EXIT_DONE
    if any("\0" in word for word in argv):
        raise UserError("an argument has a zero byte", remedy="Take it out")
    if argv[0] in ("-V", "--version"):
        print(f"stoker {__version__}")
        return contract.EXIT_DONE
    verb = argv[0]
    if verb not in VERBS:
        near = difflib.get_close_matches(verb, VERBS, n=1)
        raise UserError(f"'{verb}' is not a verb", remedy=f"Did you mean {near[0]}?" if near else "See: stoker --help")
    _check_folder()
    module_name, line = VERBS[verb]
    with _interrupts_end_it():
        module: Any = importlib.import_module(module_name)
        parser = _Parser(prog=f"stoker {verb}", description=line[0].upper() + line[1:] + ".")
        name = verb.replace("-", "_")
        getattr(module, f"{name}_arguments")(parser)
        arguments = parser.parse_intermixed_args(argv[1:])
    with trusting(getattr(arguments, "trust", False)):
        code: int = getattr(module, f"{verb}_" if keyword.iskeyword(verb) else name)(arguments)
    return code


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        super().error(_short(message))


def _check_folder() -> None:
    """Relative paths, also ./runs, begin at the current folder."""
    try:
        os.getcwd()
    except FileNotFoundError:
        raise UserError("the current folder no longer exists", remedy="Change to one that does: cd ~") from None


@contextlib.contextmanager
def _interrupts_end_it() -> Iterator[None]:
    """Ctrl-C ends it on the spot: numpy and argparse, when interrupted, turn that into errors of their own."""
    before = signal.getsignal(signal.SIGINT)
    if before is not signal.default_int_handler:  # ignored, as nohup does, or somebody else's
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
        "Train language models on your own data, and look after the run until it is done.",
    ]
    for title, verbs in GROUPS.items():
        lines += ["", f"{title}:"] + [f"  {verb:<13} {line}" for verb, (_, line) in verbs.items()]
    return "\n".join([*lines, "", "stoker help VERB says more; stoker --version says which stoker this is."])


def _short(message: str) -> str:
    """Without the middle of words that nobody reads to the end: a name of thousands of characters."""
    return LONG_WORD.sub(r"\1…\2", message)


def complain(error: StokerError) -> int:
    with contextlib.suppress(OSError):  # nobody may be left to read it
        print(safe("stoker: " + _short(str(error))), file=sys.stderr, flush=True)
    if isinstance(error, RunFailed):
        return contract.EXIT_FAILED
    return contract.EXIT_SAVED if isinstance(error, SavedForLater) else contract.EXIT_USER
