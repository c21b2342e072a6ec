"""A bare Debian in a folder: a machine on which nothing has been installed yet."""

import os
import re
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

PACKAGES = ["ca-certificates", "make", "python3", "python3-pip"]
SUITE = "bookworm"
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
COPIED_FILES = ["/etc/resolv.conf", "/etc/hosts", "/etc/pip.conf", "/root/.config/go/env"]
CERTIFICATES = "/usr/local/share/ca-certificates"
COPIED_VARIABLES = r"(?i).*_proxy|pip_.*|go(proxy|sumdb|nosumdb|noproxy|private)|.*(cert|ca_bundle|cainfo).*"
"""Environment variables with the proxies, certificates and package indexes of this machine."""
# All mounts and processes are in namespaces that end with the command, so none is left in the folder afterwards.
NAMESPACES = [
    "setpriv",
    "--pdeathsig=KILL",
    "unshare",
    "--mount",
    "--pid",
    "--fork",
    "--kill-child",
    "--propagation=private",
]
ENTER = """
set -e
mount --bind "$0" "$0"
cd "$0"
mount -t proc proc proc
mount --rbind /sys sys
mount --rbind /dev dev
mount -t tmpfs tmpfs run
mkdir -p run/outside
pivot_root . run/outside
cd /
umount -l /run/outside
rmdir /run/outside
"$@"
exit $?
"""


@dataclass(frozen=True, kw_only=True, slots=True)
class Bare:
    root: Path

    def run(self, log: TextIO, *argv: str, **env: str) -> int:
        """Run a command inside, as root. Log each line that it prints, prefixed with the time since its start."""
        began = time.monotonic()
        with subprocess.Popen(
            [*NAMESPACES, "sh", "-c", ENTER, str(self.root), *argv],
            env=self._environment() | env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
        ) as process:
            assert process.stdout is not None
            try:
                for line in process.stdout:
                    passed = int(time.monotonic() - began)
                    log.write(f"{passed // 60:3}:{passed % 60:02} {line}")
                    log.flush()
            finally:
                process.kill()  # ends every process inside
        return process.returncode

    def _environment(self) -> dict[str, str]:
        copied = {name: value for name, value in os.environ.items() if re.fullmatch(COPIED_VARIABLES, name)}
        usable = {
            name: value
            for name, value in copied.items()
            if not value.startswith("/") or (self.root / value.lstrip("/")).exists()
        }
        return usable | {"PATH": PATH, "HOME": "/root", "LANG": "C.UTF-8"}


@contextmanager
def bare(folder: Path) -> Iterator[Bare]:
    """Debian with Python, pip and make, and this machine's package indexes. The folder is deleted afterwards."""
    try:
        argv = ["debootstrap", "--variant=minbase", f"--include={','.join(PACKAGES)}", SUITE, str(folder)]
        done = subprocess.run(argv, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
        _copy_settings(folder)
        yield Bare(root=folder)
    finally:
        _remove(folder)


def _copy_settings(root: Path) -> None:
    for name in COPIED_FILES:
        if Path(name).exists():
            (root / name.lstrip("/")).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(name, root / name.lstrip("/"))
    acquire = subprocess.run(["apt-config", "dump", "Acquire"], capture_output=True, text=True, check=True).stdout
    (root / "etc/apt/apt.conf.d/80machine").write_text(acquire)
    if Path(CERTIFICATES).exists():
        shutil.copytree(CERTIFICATES, root / CERTIFICATES.lstrip("/"), dirs_exist_ok=True)
        subprocess.run(["chroot", str(root), "update-ca-certificates"], capture_output=True, check=True)


def _remove(root: Path) -> None:
    """Refuse while something is mounted there: it would delete files of this machine."""
    mounted = [line.split()[4] for line in Path("/proc/self/mountinfo").read_text().splitlines()]
    inside = [mount for mount in mounted if Path(mount).is_relative_to(root.resolve())]
    assert not inside, f"still mounted: {', '.join(inside)}"
    shutil.rmtree(root)
