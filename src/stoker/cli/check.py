"""`stoker check`: what is missing on this machine, or in a cluster, to train a run."""

import argparse
import json
from dataclasses import asdict

from stoker.backends.backend import CheckResult
from stoker.backends.checks import check_place
from stoker.backends.local.check import check as check_machine
from stoker.cli.arguments import runs_argument
from stoker.spec import contract
from stoker.spec.errors import UserError
from stoker.spec.user_config import user_default


def check_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("place", nargs="?", metavar="kube", help="check a Kubernetes cluster instead of this machine")
    parser.add_argument("--context", metavar="NAME", help="context of the kubeconfig (the current one)")
    parser.add_argument("--namespace", metavar="NAME", help="namespace of the runs (that of the context)")
    runs_argument(parser)
    parser.add_argument("--json", action="store_true", help="print it as JSON")


def check(args: argparse.Namespace) -> int:
    """Exit 0 when a run can be trained there."""
    results, where = _results(args)
    missing = [result for result in results if result.needed and not result.ok]
    if args.json:
        print(json.dumps([asdict(result) for result in results]))
    else:
        print("\n".join(_line(result) for result in results))
        print(f"\nA run can be trained {where}." if not missing else f"\nNo run can be trained {where} yet.")
    return contract.EXIT_USER if missing else contract.EXIT_DONE


def _results(args: argparse.Namespace) -> tuple[list[CheckResult], str]:
    if args.place is None:
        if args.context or args.namespace:
            raise UserError("--context and --namespace are for a cluster", remedy="Run: stoker check kube …")
        return check_machine(args.runs), "here"
    context, namespace = args.context or user_default("context"), args.namespace or user_default("namespace")
    return check_place(args.place, context, namespace), "there"


def _line(result: CheckResult) -> str:
    mark = "ok" if result.ok else "missing" if result.needed else "better"
    return f"  {mark:<8} {result.name:<12} {result.detail}" + (f". {result.remedy}" if result.remedy else "")
