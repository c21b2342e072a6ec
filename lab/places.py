"""Where the lab lives: folders, addresses, names. One lab a machine."""

import os
from pathlib import Path

STATE = Path("/var/tmp/stoker-lab")
"""What a running lab writes; gone after `down`."""
CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "stoker-lab"
"""What was built, each part under a name that says what it was made from."""
LOCK = Path("/var/tmp/stoker-lab.lock")
"""Held by whoever starts the lab or takes it down."""
USERS = Path("/var/tmp/stoker-lab.users")
"""Held, shared, by whoever uses the lab."""

KUBECONFIG = STATE / "kubeconfig"
LOGS = STATE / "logs"
READY = STATE / "ready.json"
PACKAGES = STATE / "packages"
"""A link to the site-packages that every container of the lab sees."""
VOLUMES = STATE / "volumes"
PROVISIONED = Path(
    "/tmp/hostpath_pv"
)  # where the controller manager's own provisioner makes volumes: it is not an option

RANGE = "10.213.0.0/16"
"""Every address of the lab. This machine has no other route to it than the lab itself."""
LAPTOP = "10.213.0.1"
CONTROL = "10.213.0.2"
NODES = {"node-1": "10.213.0.11", "node-2": "10.213.0.12"}
PODS = {"node-1": "10.213.1.0/24", "node-2": "10.213.2.0/24"}
ALL_PODS = "10.213.0.0/17"
FAKE_PODS = "10.213.64.0/18"
SERVICES = "10.213.128.0/17"
API_SERVICE = "10.213.128.1"
DNS_SERVICE = "10.213.128.10"
LINK = "stoker-lab"
"""The interface of this machine that leads to the lab."""

API_PORT = 6443
REGISTRY = f"{CONTROL}:5000"
IMAGES = {
    "pause": f"{REGISTRY}/lab/pause:1",
    "base": f"{REGISTRY}/lab/base:1",
    "bare": f"{REGISTRY}/lab/bare:1",
}
IN_POD_PACKAGES = "/opt/lab/packages"
"""Where every container finds PACKAGES; the base image's Python has it at the end of its path."""
CGROUP = "stoker-lab"
