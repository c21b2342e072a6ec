"""`stoker addon`: create or delete a service in the cluster that some runs need."""

import argparse

from stoker.backends.kubernetes import etcd, manifest
from stoker.cli import output
from stoker.kube import connect, namespace_of
from stoker.spec import contract
from stoker.spec.errors import UserError
from stoker.spec.user_config import user_default

ADDONS = ("etcd",)


def addon_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", choices=ADDONS, metavar="|".join(ADDONS), help="an etcd server, for on.rendezvous=etcd")
    parser.add_argument("--image", metavar="IMAGE", help="the server's image, with its version: etcd 3.5")
    parser.add_argument("--context", metavar="NAME", help="context of the kubeconfig (the current one)")
    parser.add_argument("--namespace", metavar="NAME", help="namespace of the runs (that of the context)")
    parser.add_argument("--dry-run", action="store_true", help="print the objects, and create nothing")
    parser.add_argument("--remove", action="store_true", help="delete it")


def addon(args: argparse.Namespace) -> int:
    context, namespace = args.context or user_default("context"), args.namespace or user_default("namespace")
    if args.remove:
        removed = etcd.remove(connect(context, namespace))
        print("\n".join(f"removed {name}" for name in removed) or f"Stoker has created no {args.name} there")
        return contract.EXIT_DONE
    if args.image is None:
        raise UserError("--image is missing", remedy="Name an image of etcd 3.5 that your nodes can pull, with its tag")
    if args.dry_run:
        print(manifest.text(etcd.objects(args.image, namespace or namespace_of(context))).rstrip())
        return contract.EXIT_DONE
    cluster = connect(context, namespace)
    created = [f"{created['kind']} {created['metadata']['name']}" for created in etcd.install(cluster, args.image)]
    rows = [("created", ", ".join(created)), ("namespace", cluster.namespace), ("use it", "on.rendezvous=etcd")]
    print(output.pairs(rows))
    return contract.EXIT_DONE
