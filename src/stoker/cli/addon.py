"""`stoker addon`: what some runs need beside themselves in a cluster, made and taken away again."""

import argparse

from stoker.cli import output
from stoker.kube import connect, namespace_of
from stoker.launch import etcd, manifest
from stoker.spec import contract
from stoker.spec.errors import UserError

ADDONS = ("etcd",)


def addon_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", choices=ADDONS, metavar="|".join(ADDONS), help="an etcd server, for on.rendezvous=etcd")
    parser.add_argument("--image", metavar="IMAGE", help="the server's image, with its version: etcd 3.5")
    parser.add_argument("--context", metavar="NAME", help="the kubeconfig's context (its current one)")
    parser.add_argument("--namespace", metavar="NAME", help="where the runs live (the context's own)")
    parser.add_argument("--dry-run", action="store_true", help="print the objects, and make nothing")
    parser.add_argument("--remove", action="store_true", help="take it away")


def addon(args: argparse.Namespace) -> int:
    if args.remove:
        gone = etcd.remove(connect(args.context, args.namespace))
        print("\n".join(f"removed {one}" for one in gone) or "there is none of Stoker's")
        return contract.EXIT_DONE
    if args.image is None:
        raise UserError("--image is missing", remedy="Name one of etcd 3.5 that your nodes can pull, with its tag")
    if args.dry_run:
        print(manifest.text(etcd.objects(args.image, args.namespace or namespace_of(args.context))).rstrip())
        return contract.EXIT_DONE
    cluster = connect(args.context, args.namespace)
    made = [f"{one['kind']} {one['metadata']['name']}" for one in etcd.install(cluster, args.image)]
    rows = [("made", ", ".join(made)), ("namespace", cluster.namespace), ("use it", "on.rendezvous=etcd")]
    print(output.pairs(rows))
    return contract.EXIT_DONE
