"""`stoker check`: what this machine lacks."""

import argparse
import json
from dataclasses import asdict

from stoker.cli.places import runs_argument
from stoker.launch.check import Finding
from stoker.launch.check import check as look
from stoker.spec import contract


def check_arguments(parser: argparse.ArgumentParser) -> None:
    runs_argument(parser)
    parser.add_argument("--json", action="store_true", help="print it as JSON")


def check(args: argparse.Namespace) -> int:
    """Exit 0 when a run can be trained here."""
    findings = look(args.runs)
    lacking = [finding for finding in findings if finding.needed and not finding.ok]
    if args.json:
        print(json.dumps([asdict(finding) for finding in findings]))
    else:
        print("\n".join(_line(finding) for finding in findings))
        print("\nA run can be trained here." if not lacking else "\nNo run can be trained here yet.")
    return contract.EXIT_USER if lacking else contract.EXIT_DONE


def _line(finding: Finding) -> str:
    mark = "ok" if finding.ok else "missing" if finding.needed else "better"
    return f"  {mark:<8} {finding.name:<12} {finding.found}" + (f". {finding.remedy}" if finding.remedy else "")
