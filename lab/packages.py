"""Debian packages that this machine needs: installed when we may, named when we may not."""

import contextlib
import fcntl
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

from lab import versions
from lab.places import CACHE
from lab.progress import say
from stoker.spec.errors import UserError
from stoker.spec.host import lacks_compiler

ELSEWHERE = ["containerd", "runc"]  # Docker's containerd.io brings them too, and Debian's would take its place
SERVICES = ["containerd", "docker-registry"]
"""Packages whose service of the same name stays off, now and at the next boot: the lab starts its own."""
COMPILER = ["g++", "python3-dev"]  # what torch.compile needs, for the tests that compile
POLICY = Path("/usr/sbin/policy-rc.d")
MARK = "# Stoker's lab is installing: "


def missing() -> list[str]:
    """The packages that are not installed."""
    wanted = [*versions.read().host_packages, *(COMPILER if lacks_compiler() else ())]
    argv = ["dpkg-query", "--show", "--showformat=${Package} ${db:Status-Status}\n", *wanted]
    done = subprocess.run(argv, capture_output=True, text=True)
    there = {line.split()[0] for line in done.stdout.splitlines() if line.endswith(" installed")}
    there |= {name for name in ELSEWHERE if shutil.which(name)}
    return [name for name in wanted if name not in there]


def install() -> None:
    CACHE.mkdir(parents=True, exist_ok=True)
    with open(CACHE / "packages.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        _tidy()
        if names := missing():
            say(f"installing {' '.join(names)}")
            with _quietly(names):
                _install(names)


def _install(names: list[str]) -> None:
    argv = ["install", "--yes", "--no-install-recommends", "--no-remove", *names]
    try:
        _apt(*argv)
    except UserError as error:
        if "remove is disabled" in error.problem:
            raise UserError(
                f"the lab needs the Debian packages {' '.join(names)}, which would push out others",
                remedy=f"See which: apt-get install --simulate {' '.join(names)}",
            ) from error
        _apt("update")  # the lists are old, or were never fetched
        _apt(*argv)


@contextlib.contextmanager
def _quietly(names: list[str]) -> Iterator[None]:
    """No service starts. What says so also says what is being installed, for whoever comes after a kill."""
    if POLICY.exists():
        yield
        _disable(names)
        return
    POLICY.write_text(f"#!/bin/sh\n{MARK}{' '.join(names)}\nexit 101\n")
    POLICY.chmod(0o755)
    try:
        yield
    finally:
        _tidy()


def _tidy() -> None:
    lines = POLICY.read_text(errors="replace").splitlines() if POLICY.exists() else []
    for line in lines:
        if line.startswith(MARK):
            _disable(line.removeprefix(MARK).split())
            POLICY.unlink()


def _disable(names: list[str]) -> None:
    for name in names:
        if name in SERVICES and shutil.which("systemctl"):
            subprocess.run(["systemctl", "--quiet", "disable", name], capture_output=True)


def _apt(*words: str) -> None:
    env = os.environ | {"DEBIAN_FRONTEND": "noninteractive", "LC_ALL": "C"}
    argv = ["apt-get", "-qq", "-o", "Dpkg::Use-Pty=0", "-o", "DPkg::Lock::Timeout=300", *words]
    done = subprocess.run(argv, env=env, capture_output=True, text=True)
    if done.returncode:
        last = (done.stderr.strip() or done.stdout.strip()).splitlines()[-1:]
        raise UserError(f"apt-get {words[0]} failed: {' '.join(last)}", remedy=f"Run: apt-get {' '.join(words)}")
