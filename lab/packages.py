"""Debian packages that this machine needs: installed when we may, named when we may not."""

import os
import subprocess
from pathlib import Path

from lab import versions
from stoker.spec.errors import UserError

POLICY = Path("/usr/sbin/policy-rc.d")


def missing() -> list[str]:
    """The packages that are not installed."""
    wanted = versions.read().host_packages
    argv = ["dpkg-query", "--show", "--showformat=${Package} ${db:Status-Status}\n", *wanted]
    done = subprocess.run(argv, capture_output=True, text=True)
    there = {line.split()[0] for line in done.stdout.splitlines() if line.endswith(" installed")}
    return [name for name in wanted if name not in there]


def install() -> None:
    names = missing()
    if not names:
        return
    print(f"installing {' '.join(names)}", flush=True)
    quiet = POLICY.exists()
    if not quiet:
        POLICY.write_text("#!/bin/sh\nexit 101\n")  # the packages' own services stay off: the lab starts its own
        POLICY.chmod(0o755)
    try:
        try:
            _apt("install", "--yes", "--no-install-recommends", *names)
        except UserError:  # the lists are old, or were never fetched
            _apt("update")
            _apt("install", "--yes", "--no-install-recommends", *names)
    finally:
        if not quiet:
            POLICY.unlink()


def _apt(*words: str) -> None:
    env = os.environ | {"DEBIAN_FRONTEND": "noninteractive"}
    argv = ["apt-get", "-qq", "-o", "Dpkg::Use-Pty=0", "-o", "DPkg::Lock::Timeout=300", *words]
    done = subprocess.run(argv, env=env, capture_output=True, text=True)
    if done.returncode:
        last = (done.stderr.strip() or done.stdout.strip()).splitlines()[-1:]
        raise UserError(f"apt-get {words[0]} failed: {' '.join(last)}", remedy=f"Run: apt-get {' '.join(words)}")
