"""`stoker import-config`: convert a manifest or a command of another launcher to a run file."""

import argparse
import json
import sys
from pathlib import Path

from stoker.cli.arguments import path
from stoker.cli.screen import show
from stoker.convert import torchx
from stoker.convert.manifests import KINDS
from stoker.convert.run_file import read_manifest, run_file
from stoker.spec import contract
from stoker.spec.errors import UserError
from stoker.spec.files import read_text


def import_config_arguments(parser: argparse.ArgumentParser) -> None:
    kinds = sorted([*KINDS, torchx.KIND])
    parser.add_argument("kind", choices=kinds, metavar="|".join(kinds), help="what the file holds")
    parser.add_argument(
        "file", type=path, metavar="FILE", help="the manifest or, for torchx, the command as you type it"
    )
    parser.add_argument(
        "--set", action="append", default=[], metavar="NAME=VALUE", help="the value of $NAME in it; may be repeated"
    )
    parser.add_argument("-o", "--out", type=path, metavar="FILE", help="write the run file here, not to stdout")
    parser.add_argument("--json", action="store_true", help="print the run file and what became of each field as JSON")


def import_config(args: argparse.Namespace) -> int:
    values, outcomes = read_manifest(_text(args.file), str(args.file), args.kind, _variables(args.set))
    text = run_file(values, outcomes, source=args.file.name)
    if args.out is not None:
        _write(args.out, text)
        used = sum(outcome.is_used for _, outcome in outcomes)
        unused = len(outcomes) - used
        print(f"wrote {args.out}: {used} fields used, {unused} not used (listed at its end)", file=sys.stderr)
    if args.json:
        fields = [{"field": field, "became": str(outcome)} for field, outcome in outcomes]
        print(json.dumps({"run": values, "fields": fields}, indent=2, default=str))
    elif args.out is None:
        show(text, end="")
    return contract.EXIT_DONE


def _write(file: Path, text: str) -> None:
    try:
        with file.open("x", encoding="utf-8") as out:
            out.write(text)
    except FileExistsError:
        raise UserError(f"{file} exists already", remedy="Choose another name, or remove it first") from None
    except OSError as e:
        raise UserError(f"{file} cannot be written: {e.strerror}", remedy="Check the path") from e


def _text(file: Path) -> str:
    try:
        return read_text(file)
    except UnicodeDecodeError:
        raise UserError(f"{file} is not UTF-8 text", remedy="Save it as UTF-8") from None
    except OSError as e:
        raise UserError(f"{file} cannot be read: {e.strerror}", remedy="Check the path") from e


def _variables(assignments: list[str]) -> dict[str, str]:
    for assignment in assignments:
        if "=" not in assignment or assignment.startswith("="):
            raise UserError(f"--set {assignment} is not NAME=VALUE", remedy="Write it as --set NUM_NODES=2")
    return dict(assignment.split("=", 1) for assignment in assignments)
