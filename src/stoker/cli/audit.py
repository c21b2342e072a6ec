"""`stoker audit`: prove from the ledger and the shards that every sample was used exactly once."""

import argparse
import json
from dataclasses import asdict

from stoker.cli import output
from stoker.cli.places import runs_argument
from stoker.observe.audit import Audit
from stoker.observe.audit import audit as prove
from stoker.observe.runs import find
from stoker.observe.shares import Source
from stoker.spec import contract

SHOWN = 10


def audit_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", metavar="RUN", help="a run's name or folder")
    runs_argument(parser)
    parser.add_argument("--json", action="store_true", help="print it as JSON")


def audit(args: argparse.Namespace) -> int:
    found = prove(find(args.run, args.runs))
    print(json.dumps(asdict(found) | {"ok": found.ok}) if args.json else _text(found))
    return contract.EXIT_DONE if found.ok else contract.EXIT_NO


def _text(found: Audit) -> str:
    rows = [
        ("steps", f"{found.steps:,}, in {found.attempts} attempt{'s' * (found.attempts != 1)}"),
        ("samples", f"{found.samples:,}" + ("" if found.sources else f", {found.epochs} whole times through the data")),
        *(("source", _source(source)) for source in found.sources),
        ("missing", str(found.missing)),
        ("duplicated", str(found.duplicated)),
        ("mismatched", str(found.mismatched)),
        (
            "verdict",
            "proven: no sample was left out or used twice, and each was as the shards hold it"
            if found.ok
            else f"not proven: {output.printable(found.problems[0] if found.problems else 'see above')}",
        ),
        *(("not checked", output.printable(text)) for text in found.unchecked),
    ]
    more = len(found.problems) - SHOWN
    rows += [("problem", output.printable(problem)) for problem in found.problems[1:SHOWN]]
    return output.pairs([*rows, ("problem", f"and {more} more")] if more > 0 else rows)


def _source(source: Source) -> str:
    return (
        f"{output.printable(source.name)}: {source.samples:,} samples for a weight of {source.weight:.4g}, "
        f"{source.epochs} whole times through it"
    )
