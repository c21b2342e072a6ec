"""`stoker init`: write a run file for your data."""

import shlex
from argparse import ArgumentParser, Namespace
from pathlib import Path

from stoker.cli.arguments import path
from stoker.spec.errors import UserError
from stoker.spec.load import load
from stoker.spec.starter import starter, summarize


def init_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("data", metavar="DATA", nargs="+", help="files, folders or globs of your text")
    parser.add_argument("-o", "--out", metavar="FILE", type=path, default=Path("run.yaml"), help="default: run.yaml")


def init(args: Namespace) -> int:
    out: Path = args.out
    exists = UserError(f"{out} exists already", remedy="Choose another name with -o FILE, or move it away")
    if out.exists():
        raise exists
    text = starter(summarize(args.data), out)
    try:
        with open(out, "x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError:
        raise exists from None
    except OSError as e:
        raise UserError(f"cannot write {out}: {e.strerror}", remedy="Choose another place with -o FILE") from e
    spec = load(out, []).training
    print(f"wrote {out}: {spec.until.steps} steps of {spec.batch.sequences} x {spec.batch.length} tokens")
    print(f"next: stoker train {shlex.quote(str(out))}")
    return 0
