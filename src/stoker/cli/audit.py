"""`stoker audit`: prove from the ledger and the shards that every sample was used exactly once."""

import argparse
import json
from dataclasses import asdict

from stoker.cli import output
from stoker.cli.arguments import runs_argument
from stoker.observe.audit import audit as check_run
from stoker.observe.audit_result import AuditResult, MixtureShare
from stoker.observe.runs import find
from stoker.spec import contract

PROBLEMS_SHOWN = 10


def audit_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", metavar="RUN", help="a run's name or folder")
    runs_argument(parser)
    parser.add_argument("--json", action="store_true", help="print it as JSON")


def audit(args: argparse.Namespace) -> int:
    result = check_run(find(args.run, args.runs))
    print(json.dumps(asdict(result) | {"ok": result.ok}) if args.json else _text(result))
    return contract.EXIT_DONE if result.ok else contract.EXIT_NO


def _text(result: AuditResult) -> str:
    epochs = "" if result.sources else f", {_epochs(result.epochs)} of the data"
    rows = [
        ("steps", f"{result.steps:,}, in {result.attempts} attempt{'s' * (result.attempts != 1)}"),
        ("samples", f"{result.samples:,}{epochs}"),
        *(("source", _share(share)) for share in result.sources),
        ("missing", str(result.missing)),
        ("duplicated", str(result.duplicated)),
        ("mismatched", str(result.mismatched)),
        (
            "verdict",
            "proven: no sample was left out or used twice, and each was as the shards hold it"
            if result.ok
            else f"not proven: {output.printable(result.problems[0] if result.problems else 'see above')}",
        ),
        *(("not checked", output.printable(text)) for text in result.unchecked),
    ]
    more = len(result.problems) - PROBLEMS_SHOWN
    rows += [("problem", output.printable(problem)) for problem in result.problems[1:PROBLEMS_SHOWN]]
    return output.pairs([*rows, ("problem", f"and {more} more")] if more > 0 else rows)


def _share(share: MixtureShare) -> str:
    return (
        f"{output.printable(share.name)}: {share.samples:,} samples for a weight of {share.weight:.4g}, "
        f"{_epochs(share.epochs)} of it"
    )


def _epochs(count: int) -> str:
    return f"{count} complete epoch{'s' * (count != 1)}"
