"""`stoker net`: measure the network between the nodes of a run or a cluster, and report what is wrong with it."""

import argparse
import json
from contextlib import nullcontext
from dataclasses import asdict
from pathlib import Path

from stoker.api.net import survey_cluster, survey_run
from stoker.cli import output
from stoker.cli.arguments import file_and_overrides, runs_argument, trust_argument
from stoker.cli.progress.image import show_image_progress
from stoker.net.findings import busy, findings, rate, verdict
from stoker.net.survey import Host, NetworkSurvey
from stoker.net.transport import transport
from stoker.observe.runs import find
from stoker.spec import contract
from stoker.spec.errors import UserError
from stoker.spec.load import load
from stoker.spec.on import kubernetes_on

ROWS_SHOWN = 24  # of each table; --json has all
MINIMAL_SPEC = ("script=net", "on.kind=kubernetes")  # for a probe without a run, of which only `on` matters


def net_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "arguments",
        nargs="*",
        metavar="RUN|RUN.yaml key=value",
        help="a run in a cluster; or a run file, or overrides of on.… alone, to probe before a run exists",
    )
    runs_argument(parser)
    parser.add_argument(
        "--nodes", type=int, metavar="N", help="measure from temporary pods on N nodes (the run's own pods)"
    )
    parser.add_argument("--gpus", action="store_true", help="also test the GPUs of each node; not while the run trains")
    parser.add_argument("--json", action="store_true", help="print everything that was measured as JSON")
    trust_argument(parser)


def net(args: argparse.Namespace) -> int:
    """Exit 3 when something is wrong."""
    if args.nodes is not None and args.nodes < 1:
        raise UserError(f"--nodes is {args.nodes}", remedy="Give a number of nodes, such as 2")
    survey = _survey(args)
    problems = findings(survey)
    if args.json:
        transports = {host.site.pod: transport(host) for host in survey.hosts}
        report = {
            "verdict": verdict(survey, problems),
            "findings": [asdict(problem) for problem in problems],
            "transport": transports,
        }
        print(json.dumps(report | asdict(survey)))
    else:
        print(_text(survey))
        others = [("also", f"{problem.cause}. {problem.remedy}") for problem in problems[1:]]
        print(output.printable(output.pairs([("verdict", verdict(survey, problems)), *others])))
    return contract.EXIT_FAILED if problems else contract.EXIT_DONE


def _survey(args: argparse.Namespace) -> NetworkSurvey:
    if not args.arguments and args.nodes is None:
        raise UserError(
            "net needs a run, or a number of nodes", remedy="Write: stoker net RUN, or stoker net --nodes 2 on.image=…"
        )
    first, overrides = file_and_overrides(args.arguments, verb="net") if args.arguments else (None, [])
    if first and not Path(first).is_file() and Path(first).suffix not in (".yaml", ".yml"):
        if overrides:
            raise UserError(
                f"{overrides[0]}: an existing run cannot be changed here", remedy="Leave it out, or name a run file"
            )
        return survey_run(find(first, args.runs), nodes=args.nodes, gpus=args.gpus)
    spec = load(Path(first), overrides).spec if first else load(None, [*MINIMAL_SPEC, *overrides]).spec
    kubernetes_on(spec)  # raises UserError for a run on this machine
    with nullcontext(lambda *_: None) if args.json else show_image_progress() as progress:
        return survey_cluster(spec, nodes=args.nodes, gpus=args.gpus, progress=progress)


def _text(survey: NetworkSurvey) -> str:
    hosts = {host.site.pod: host for host in survey.hosts}
    parts = [_nodes(survey)]
    if survey.links:
        parts.append(_links(survey, hosts))
    if survey.gpus:
        parts.append(_gpus(survey, hosts))
    return "\n\n".join(parts) + "\n"


def _nodes(survey: NetworkSurvey) -> str:
    rows = []
    for host in survey.hosts[:ROWS_SHOWN]:
        names = [name for name in survey.names if name.pod == host.site.pod]
        good = sum(not name.error and (not name.wanted or name.wanted in name.addresses) for name in names)
        ports = [port for port in survey.ports if port.target == host.site.pod]
        answered = sum(port.state in ("open", "refused") for port in ports)
        own = next((interface for interface in host.interfaces if host.site.address in interface.addresses), None)
        rows.append(
            [
                host.site.pod,
                host.site.machine,
                host.site.address,
                own.name if own else "-",
                transport(host),
                f"{good}/{len(names)}",
                f"{answered}/{len(ports)}",
            ]
        )
    silent = survey.lost.keys() - {host.site.pod for host in survey.hosts}
    notes = _notes(len(survey.hosts), survey.nodes - len(silent), "pods")
    return output.table(["POD", "NODE", "ADDRESS", "INTERFACE", "GPU TRANSPORT", "NAMES", "PORTS"], rows) + notes


def _links(survey: NetworkSurvey, hosts: dict[str, Host]) -> str:
    worst_first = sorted(survey.links, key=lambda link: (not link.error, rate(link)))
    shown = worst_first[:ROWS_SHOWN] if len(survey.links) > ROWS_SHOWN else survey.links
    rows = []
    for link in shown:
        transports = {transport(hosts[pod]) for pod in (link.source, link.target)}
        figures = [link.error, "-", "-", "-"]
        if link.ms is not None:
            mark = "*" * busy(link)
            rates = [f"{value or 0.0:.3g}{mark}" for value in (link.gbits, link.back)]
            figures = [f"{link.ms:.3f} ms", *rates, str(link.fits or link.mtu)]
        common = min(transports) if len(transports) == 1 else "TCP"
        rows.append([link.source, link.target, *figures, link.interface or "-", common])
    notes = _notes(len(survey.links), survey.pairs, "pairs")
    if any(map(busy, shown)):
        notes += "\n* limited by a CPU: the link may be faster"
    head = ["FROM", "TO", "LATENCY", "TCP GBIT/S", "BACK", "MTU", "INTERFACE", "GPU TRANSPORT"]
    return output.table(head, rows) + notes


def _gpus(survey: NetworkSurvey, hosts: dict[str, Host]) -> str:
    rows = []
    for pod, result in list(survey.gpus.items())[:ROWS_SHOWN]:
        devices = result.get("devices", [])
        free = min((device["free"] for device in devices), default=0)
        speed = min((device["tflops"] for device in devices), default=0.0)
        all_reduce = result.get("all_reduce", {}).get("gbytes")
        rows.append(
            [
                hosts[pod].site.machine,
                f"{len(devices)} of {result.get('wanted', '?')}",
                devices[0]["name"] if devices else "-",
                output.size(free) if free else "-",
                f"{speed:.3g} TFLOP/s" if speed else "-",
                f"{all_reduce:.3g} GB/s" if all_reduce else "-",
            ]
        )
    return output.table(["NODE", "CHIPS", "NAME", "FREE", "MATMUL", "ALL-REDUCE"], rows)


def _notes(measured: int, total: int, unit: str) -> str:
    """What the table does not show, and why."""
    lines = []
    if measured > ROWS_SHOWN:
        lines.append(f"{measured - ROWS_SHOWN} more {unit}: --json prints all")
    if measured < total:
        lines.append(f"a sample: {measured} of {total} {unit}, as many as fit in a minute")
    return "".join(f"\n{line}" for line in lines)
