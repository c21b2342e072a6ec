"""RDMA devices, and whether a program in this pod can use them."""

import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

SYS, DEV = Path("/sys/class/infiniband"), Path("/dev")
EFA_HOME = Path("/opt/amazon")


def look(sys: Path = SYS, dev: Path = DEV) -> dict[str, Any]:
    """`plugin`: whether NCCL has a plugin for them; None where there is no GPU, and so no NCCL."""
    devices = [_device(path) for path in sorted(sys.glob("*"))]
    efa = any(device["driver"] == "efa" for device in devices)
    return {
        "devices": devices,
        "given": len(list(dev.glob("infiniband/uverbs*"))),
        "libfabric": libfabric() if efa else [],
        "plugin": _has_plugin() if list(dev.glob("nvidia[0-9]*")) else None,
    }


def libfabric() -> list[str]:
    """The output of `fi_info -p efa`, or its error; empty where libfabric is not installed."""
    command = shutil.which("fi_info", path=f"{os.environ.get('PATH', '')}:{EFA_HOME}/efa/bin")
    if command is None:
        return []
    try:
        answer = subprocess.run([command, "-p", "efa"], capture_output=True, text=True, timeout=10)
    except (OSError, subprocess.TimeoutExpired):
        return []
    return [line.strip() for line in (answer.stdout or answer.stderr).splitlines() if line.strip()]


def _device(path: Path) -> dict[str, Any]:
    """The state of a port is a number and a name: `4: ACTIVE`."""
    driver = (path / "device" / "driver").resolve()
    layers = {_read(file) for file in path.glob("ports/*/link_layer")}
    return {
        "name": path.name,
        "driver": driver.name if driver.exists() else "",
        "layer": min(layers, default=""),
        "active": any("ACTIVE" in _read(file) for file in path.glob("ports/*/state")),
    }


def _read(file: Path) -> str:
    try:
        return file.read_text().strip()
    except OSError:
        return ""


def _has_plugin() -> bool:
    folders = [Path(path) for path in os.environ.get("LD_LIBRARY_PATH", "").split(":") if path]
    folders += [EFA_HOME / "ofi-nccl" / "lib", *EFA_HOME.glob("ofi-nccl/lib/*-linux-gnu"), EFA_HOME / "ofi-nccl/lib64"]
    return any(True for folder in folders for _ in folder.glob("libnccl-net*.so*"))
