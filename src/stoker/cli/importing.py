"""`stoker import`: a model that transformers wrote, as a run."""

import argparse
import json
import shlex

from stoker.cli import output
from stoker.cli.places import path, runs_argument
from stoker.spec import contract, sizes
from stoker.train.importing import import_model


def import_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "folder", type=path, metavar="FOLDER", help="with config.json, safetensors or .bin files, and tokenizer.json"
    )
    parser.add_argument("--name", required=True, metavar="NAME", help="what the run is to be called")
    runs_argument(parser)
    parser.add_argument("--json", action="store_true", help="print it as JSON")


def import_(args: argparse.Namespace) -> int:
    run = import_model(args.folder, name=args.name, runs=args.runs)
    shape = run.spec().model
    parameters = sizes.parameters(shape, shape.vocab or 0)
    if args.json:
        print(json.dumps({"name": run.name, "folder": str(run.path), "parameters": parameters}))
        return contract.EXIT_DONE
    path = shlex.quote(str(run.path))
    numbers = f"{shape.family}, {output.number(parameters)} parameters, {shape.vocab:,} tokens"
    print(
        output.pairs(
            [
                ("model", numbers),
                ("run", run.name),
                ("folder", str(run.path)),
                ("next", f"stoker generate {path}  ·  stoker export {path} -o DIR"),
            ]
        )
    )
    return contract.EXIT_DONE
