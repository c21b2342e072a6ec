"""Folders, addresses and names of the lab. One lab per machine, except for the test that stops one."""

import os
from pathlib import Path

NUMBER = int(os.environ.get("STOKER_LAB", "0"))
"""The number of the lab: 0 is the shared one."""
NAME = f"stoker-lab-{NUMBER}" if NUMBER else "stoker-lab"
NET = f"10.{213 + NUMBER}"

STATE = Path("/var/tmp") / NAME
"""The files of a running lab; deleted by `down`."""
CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "stoker-lab"
"""Build outputs, named by a hash of their inputs."""
LOCK = STATE.with_suffix(".lock")
"""Locked by the process that starts or stops the lab."""
USERS = STATE.with_suffix(".users")
"""Locked (shared) by processes that use the lab."""

KUBECONFIG = STATE / "kubeconfig"
LOGS = STATE / "logs"
READY = STATE / "ready.json"
PACKAGES = STATE / "packages"
"""A link to the site-packages that every container of the lab sees."""
VOLUMES = STATE / "volumes"
PROVISIONED = Path("/tmp/hostpath_pv")
"""The fixed folder of the controller manager's volume provisioner; every host mounts VOLUMES there."""

RANGE = f"{NET}.0.0/16"
"""All addresses of the lab. This machine routes them only to the lab."""
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
"""PACKAGES in every container; at the end of sys.path in the base image."""
CGROUP = NAME
