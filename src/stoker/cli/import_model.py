"""`stoker import`: make a run of a model that transformers wrote."""

import argparse
import json
import shlex

from stoker.cli import output
from stoker.inference.importing import import_model
from stoker.spec import contract, estimate
from stoker.spec.units import short_number


def import_(args: argparse.Namespace) -> int:
    run = import_model(args.folder, name=args.name, runs=args.runs)
    shape = run.spec().model
    parameters = estimate.parameters(shape, shape.vocab or 0)
    if args.json:
        print(json.dumps({"name": run.name, "folder": str(run.path), "parameters": parameters}))
        return contract.EXIT_DONE
    path = shlex.quote(str(run.path))
    numbers = f"{shape.family}, {short_number(parameters)} parameters, {shape.vocab:,} tokens"
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
