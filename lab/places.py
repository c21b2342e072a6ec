"""Where the lab lives: folders, addresses, names. One lab a machine, but for the test that takes one down."""

import os
from pathlib import Path

NUMBER = int(os.environ.get("STOKER_LAB", "0"))
"""Which lab this is: 0 is the one that all share."""
NAME = f"stoker-lab-{NUMBER}" if NUMBER else "stoker-lab"
NET = f"10.{213 + NUMBER}"

STATE = Path("/var/tmp") / NAME
"""What a running lab writes; gone after `down`."""
CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "stoker-lab"
"""What was built, each part under a name that says what it was made from."""
LOCK = STATE.with_suffix(".lock")
"""Held by whoever starts the lab or takes it down."""
USERS = STATE.with_suffix(".users")
"""Held, shared, by whoever uses the lab."""

KUBECONFIG = STATE / "kubeconfig"
LOGS = STATE / "logs"
READY = STATE / "ready.json"
PACKAGES = STATE / "packages"
"""A link to the site-packages that every container of the lab sees."""
VOLUMES = STATE / "volumes"
PROVISIONED = Path("/tmp/hostpath_pv")
"""Where the controller manager's own provisioner makes volumes, unasked; every host has VOLUMES mounted there."""

RANGE = f"{NET}.0.0/16"
"""Every address of the lab. This machine has no other route to it than the lab itself."""
LAPTOP = f"{NET}.0.1"
CONTROL = f"{NET}.0.2"
NODES = {"node-1": f"{NET}.0.11", "node-2": f"{NET}.0.12"}
PODS = {"node-1": f"{NET}.1.0/24", "node-2": f"{NET}.2.0/24"}
ALL_PODS = f"{NET}.0.0/17"
FAKE_PODS = f"{NET}.64.0/18"
SERVICES = f"{NET}.128.0/17"
API_SERVICE = f"{NET}.128.1"
DNS_SERVICE = f"{NET}.128.10"
LINK = NAME
"""The interface of this machine that leads to the lab."""

API_PORT = 6443
REGISTRY_PORT = 5000
REGISTRY = f"{CONTROL}:{REGISTRY_PORT}"
IMAGES = {
    "pause": f"{REGISTRY}/lab/pause:1",
    "base": f"{REGISTRY}/lab/base:1",
    "bare": f"{REGISTRY}/lab/bare:1",
    "init": f"{REGISTRY}/lab/init:1",
    "etcd": f"{REGISTRY}/lab/etcd:1",
}
IN_POD_PACKAGES = "/opt/lab/packages"
"""Where every container finds PACKAGES; the base image's Python has it at the end of its path."""
CGROUP = NAME
