"""Installs the Debian packages that the tests and the lab need."""

import contextlib
import fcntl
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

from lab import versions
from lab.places import CACHE
from lab.progress import log
from stoker.spec.errors import UserError
from stoker.spec.host import missing_compiler

ALTERNATIVES = ["containerd", "runc"]  # Docker's containerd.io has them too, and Debian's package would replace it
SERVICES = ["containerd", "docker-registry"]
"""Packages whose service is disabled, now and at the next boot: the lab starts its own processes."""
COMPILER = ["g++", "python3-dev"]  # for tests that use torch.compile
POLICY = Path("/usr/sbin/policy-rc.d")
MARK = "# Stoker's lab is installing: "


def missing() -> list[str]:
    """The packages that are not installed."""
    required = [*versions.read().host_packages, *(COMPILER if missing_compiler() else ())]
    argv = ["dpkg-query", "--show", "--showformat=${Package} ${db:Status-Status}\n", *required]
    done = subprocess.run(argv, capture_output=True, text=True)
    installed = {line.split()[0] for line in done.stdout.splitlines() if line.endswith(" installed")}
    installed |= {name for name in ALTERNATIVES if shutil.which(name)}
    return [name for name in required if name not in installed]


def install() -> None:
    CACHE.mkdir(parents=True, exist_ok=True)
    with open(CACHE / "packages.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        _clean_up()
        if names := missing():
            log(f"installing {' '.join(names)}")
            with _without_services(names):
                _install(names)


def _install(names: list[str]) -> None:
    argv = ["install", "--yes", "--no-install-recommends", "--no-remove", *names]
    try:
        _apt(*argv)
    except UserError as error:
        if "remove is disabled" in error.problem:
            raise UserError(
                f"the lab needs the Debian packages {' '.join(names)}, which would remove other packages",
                remedy=f"List them: apt-get install --simulate {' '.join(names)}",
            ) from error
        _apt("update")  # the package lists are old or missing
        _apt(*argv)


@contextlib.contextmanager
def _without_services(names: list[str]) -> Iterator[None]:
    """Start no services during the installation. The policy file lists the packages, for a cleanup after a kill."""
    if POLICY.exists():
        yield
        _disable(names)
        return
    POLICY.write_text(f"#!/bin/sh\n{MARK}{' '.join(names)}\nexit 101\n")
    POLICY.chmod(0o755)
    try:
        yield
    finally:
        _clean_up()


def _clean_up() -> None:
    lines = POLICY.read_text(errors="replace").splitlines() if POLICY.exists() else []
    for line in lines:
        if line.startswith(MARK):
            _disable(line.removeprefix(MARK).split())
            POLICY.unlink()


def _disable(names: list[str]) -> None:
    for name in names:
        if name in SERVICES and shutil.which("systemctl"):
            subprocess.run(["systemctl", "--quiet", "disable", name], capture_output=True)


def _apt(*args: str) -> None:
    env = os.environ | {"DEBIAN_FRONTEND": "noninteractive", "LC_ALL": "C"}
    argv = ["apt-get", "-qq", "-o", "Dpkg::Use-Pty=0", "-o", "DPkg::Lock::Timeout=300", *args]
    done = subprocess.run(argv, env=env, capture_output=True, text=True)
    if done.returncode:
        last = (done.stderr.strip() or done.stdout.strip()).splitlines()[-1:]
        raise UserError(f"apt-get {args[0]} failed: {' '.join(last)}", remedy=f"Run: apt-get {' '.join(args)}")
