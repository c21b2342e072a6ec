"""`stoker net`: what lies between the nodes of a run or a cluster, and what is wrong with it."""

import argparse
import importlib
import json
from contextlib import nullcontext
from dataclasses import asdict
from pathlib import Path
from typing import Any

from stoker.cli import output
from stoker.cli.places import runs_argument, trust_argument
from stoker.cli.train import file_and_words
from stoker.launch.probe.survey import Host, Survey
from stoker.observe.fabric import transport
from stoker.observe.net import busy, findings, rate, verdict
from stoker.observe.runs import find
from stoker.spec import contract
from stoker.spec.errors import UserError
from stoker.spec.load import load

SHOWN = 24  # pairs, and nodes; --json has all
NOTHING = ("script=net", "on.kind=kubernetes")  # a spec of which only `on` matters


def net_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "words",
        nargs="*",
        metavar="RUN|RUN.yaml key=value",
        help="a run in a cluster; or a run file, or on.… alone, for what a run would find there",
    )
    runs_argument(parser)
    parser.add_argument(
        "--nodes", type=int, metavar="N", help="make a pod on each of N nodes and look from there (those of the run)"
    )
    parser.add_argument("--gpus", action="store_true", help="try the GPUs of each node as well, before a run is there")
    parser.add_argument("--json", action="store_true", help="print all that was seen as JSON")
    trust_argument(parser)


def net(args: argparse.Namespace) -> int:
    """Exit 3 when something is wrong."""
    if args.nodes is not None and args.nodes < 1:
        raise UserError(f"--nodes is {args.nodes}", remedy="Give a number of nodes, such as 2")
    survey: Survey = _survey(args)
    found = findings(survey)
    if args.json:
        transports = {host.site.pod: transport(host) for host in survey.hosts}
        told = {"verdict": verdict(survey, found), "findings": [asdict(one) for one in found], "transport": transports}
        print(json.dumps(told | asdict(survey)))
    else:
        print(_text(survey))
        rows = [("verdict", verdict(survey, found)), *(("also", f"{one.problem}. {one.remedy}") for one in found[1:])]
        print(output.printable(output.pairs(rows)))
    return contract.EXIT_FAILED if found else contract.EXIT_DONE


def _survey(args: argparse.Namespace) -> Any:
    module: Any = importlib.import_module("stoker.api.net")  # its HTTP client is heavy
    if not args.words and args.nodes is None:
        raise UserError(
            "net needs a run, or a number of nodes", remedy="Write: stoker net RUN, or stoker net --nodes 2 on.image=…"
        )
    first, words = file_and_words(args.words, verb="net") if args.words else (None, [])
    if first and not Path(first).is_file() and Path(first).suffix not in (".yaml", ".yml"):
        if words:
            raise UserError(f"{words[0]}: a run is as it is", remedy="Leave that out, or name a run file")
        return module.between_nodes_of(find(first, args.runs), nodes=args.nodes, gpus=args.gpus)
    spec = load(Path(first), words).spec if first else load(None, [*NOTHING, *words]).spec
    if spec.on.kind != "kubernetes":
        raise UserError(f"on.kind is {spec.on.kind}, and net looks into a cluster", remedy="Set on.kind=kubernetes")
    building: Any = importlib.import_module("stoker.cli.image").building
    with nullcontext(lambda *_: None) if args.json else building() as progress:
        return module.between_nodes(spec, nodes=args.nodes, gpus=args.gpus, progress=progress)


def _text(survey: Survey) -> str:
    hosts = {host.site.pod: host for host in survey.hosts}
    parts = [_nodes(survey)]
    if survey.links:
        parts.append(_links(survey, hosts))
    if survey.gpus:
        parts.append(_gpus(survey, hosts))
    return "\n\n".join(parts) + "\n"


def _nodes(survey: Survey) -> str:
    rows = []
    for host in survey.hosts[:SHOWN]:
        names = [one for one in survey.names if one.pod == host.site.pod]
        good = sum(not one.error and (not one.wanted or one.wanted in one.addresses) for one in names)
        heard = [one for one in survey.ports if one.target == host.site.pod]
        answered = sum(one.state in ("open", "refused") for one in heard)
        face = next((face for face in host.interfaces if host.site.address in face.addresses), None)
        rows.append(
            [
                host.site.pod,
                host.site.machine,
                host.site.address,
                face.name if face else "-",
                transport(host),
                f"{good}/{len(names)}",
                f"{answered}/{len(heard)}",
            ]
        )
    silent = survey.lost.keys() - {host.site.pod for host in survey.hosts}
    more = _more(len(survey.hosts), survey.nodes - len(silent), "pods")
    return output.table(["POD", "NODE", "ADDRESS", "INTERFACE", "GPU TRANSPORT", "NAMES", "PORTS"], rows) + more


def _links(survey: Survey, hosts: dict[str, Host]) -> str:
    worst_first = sorted(survey.links, key=lambda link: (not link.error, rate(link)))
    shown = worst_first[:SHOWN] if len(survey.links) > SHOWN else survey.links
    rows = []
    for link in shown:
        kinds = {transport(hosts[pod]) for pod in (link.source, link.target)}
        figures = [link.error, "-", "-", "-"]
        if link.ms is not None:
            mark = "*" * busy(link)
            rates = [f"{value or 0.0:.3g}{mark}" for value in (link.gbits, link.back)]
            figures = [f"{link.ms:.3f} ms", *rates, str(link.fits or link.mtu)]
        rows.append(
            [link.source, link.target, *figures, link.interface or "-", min(kinds) if len(kinds) == 1 else "TCP"]
        )
    more = _more(len(survey.links), survey.pairs, "pairs")
    if any(map(busy, shown)):
        more += "\n* an end waited for a processor: the link may be faster"
    head = ["FROM", "TO", "LATENCY", "TCP GBIT/S", "BACK", "MTU", "INTERFACE", "GPU TRANSPORT"]
    return output.table(head, rows) + more


def _gpus(survey: Survey, hosts: dict[str, Host]) -> str:
    rows = []
    for pod, told in list(survey.gpus.items())[:SHOWN]:
        devices = told.get("devices", [])
        free = min((one["free"] for one in devices), default=0)
        speed = min((one["tflops"] for one in devices), default=0.0)
        reduced = told.get("all_reduce", {}).get("gbytes")
        rows.append(
            [
                hosts[pod].site.machine,
                f"{len(devices)} of {told.get('wanted', '?')}",
                devices[0]["name"] if devices else "-",
                output.size(free) if free else "-",
                f"{speed:.3g} TFLOP/s" if speed else "-",
                f"{reduced:.3g} GB/s" if reduced else "-",
            ]
        )
    return output.table(["NODE", "CHIPS", "NAME", "FREE", "PRODUCT", "ALL-REDUCE"], rows)


def _more(seen: int, all_of_them: int, what: str) -> str:
    """What the table does not show, and why."""
    lines = []
    if seen > SHOWN:
        lines.append(f"{seen - SHOWN} more {what}: --json prints all")
    if seen < all_of_them:
        lines.append(f"a sample: {seen} of {all_of_them} {what}, as many as a minute allows")
    return "".join(f"\n{line}" for line in lines)
