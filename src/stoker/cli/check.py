"""`stoker check`: what this machine, or a cluster, lacks."""

import argparse
import importlib
import json
from dataclasses import asdict
from typing import Any

from stoker.cli.places import runs_argument
from stoker.launch.check import Finding
from stoker.launch.check import check as look
from stoker.spec import contract
from stoker.spec.errors import UserError

PLACES = {"kube": "stoker.launch.check_kube"}  # heavy, so by name


def check_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("place", nargs="?", metavar="kube", help="look at a Kubernetes cluster instead of this machine")
    parser.add_argument("--context", metavar="NAME", help="the kubeconfig's context (its current one)")
    parser.add_argument("--namespace", metavar="NAME", help="where runs would live (the context's own)")
    runs_argument(parser)
    parser.add_argument("--json", action="store_true", help="print it as JSON")


def check(args: argparse.Namespace) -> int:
    """Exit 0 when a run can be trained there."""
    findings, where = _findings(args)
    lacking = [finding for finding in findings if finding.needed and not finding.ok]
    if args.json:
        print(json.dumps([asdict(finding) for finding in findings]))
    else:
        print("\n".join(_line(finding) for finding in findings))
        print(f"\nA run can be trained {where}." if not lacking else f"\nNo run can be trained {where} yet.")
    return contract.EXIT_USER if lacking else contract.EXIT_DONE


def _findings(args: argparse.Namespace) -> tuple[list[Finding], str]:
    if args.place is None:
        if args.context or args.namespace:
            raise UserError("--context and --namespace are of a cluster", remedy="Run: stoker check kube …")
        return look(args.runs), "here"
    if args.place not in PLACES:
        raise UserError(f"stoker check knows no '{args.place}'", remedy="Run: stoker check, or stoker check kube")
    module: Any = importlib.import_module(PLACES[args.place])
    return module.check(args.context, args.namespace), "there"


def _line(finding: Finding) -> str:
    mark = "ok" if finding.ok else "missing" if finding.needed else "better"
    return f"  {mark:<8} {finding.name:<12} {finding.found}" + (f". {finding.remedy}" if finding.remedy else "")
