"""The images of the lab."""

import subprocess
from pathlib import Path

from lab import cache, golang, image, versions
from lab.places import IN_POD_PACKAGES

BUSYBOX = Path("/bin/busybox")
APPLETS = ["sh", "cat", "echo", "env", "ls", "nslookup", "seq", "sleep", "wget"]
HERE = Path(__file__).parent
NSLOOKUP = HERE / "nslookup"


def pause() -> Path:
    """What a pod's sandbox runs."""
    program = golang.cluster() / "pause"

    def build(folder: Path) -> None:
        image.write(folder, image.layer({"pause": program}), Entrypoint=["/pause"])

    return cache.built("image-pause", cache.key(program, _writer()), build)


def bare() -> Path:
    """A shell and little else: no Python."""

    def build(folder: Path) -> None:
        links = {f"bin/{name}": "busybox" for name in APPLETS}
        image.write(folder, image.layer({"bin/busybox": BUSYBOX, **links}), Cmd=["/bin/sh"])

    return cache.built("image-bare", cache.key(BUSYBOX, *APPLETS, _writer()), build)


def base() -> Path:
    """Debian with Python, for training pods. Packages such as torch are not in it: the nodes lend them (PACKAGES)."""
    wanted = versions.read()

    def build(folder: Path) -> None:
        tar = folder / "tar"
        subprocess.run(_debian(tar, wanted.suite, wanted.base_packages), check=True)
        with open(tar, "rb") as stream:
            image.write(folder, stream, Cmd=["python3"])
        tar.unlink()

    made_from = cache.key(" ".join(_debian(Path(), wanted.suite, wanted.base_packages)), _writer())
    return cache.built("image-base", made_from, build)


def init() -> Path:
    """What waits for the master before a worker of a PyTorchJob starts. busybox has an nslookup too, but it fails
    when one of the search suffixes knows no such name."""

    def build(folder: Path) -> None:
        image.extend(folder, base(), image.layer({"usr/bin/nslookup": NSLOOKUP}))

    return cache.built("image-init", cache.key(NSLOOKUP, base().name, _writer()), build)


def etcd() -> Path:
    """A server for runs that ask for `on.rendezvous: etcd`, where its own images have it."""
    program = golang.etcd() / "etcd"

    def build(folder: Path) -> None:
        image.write(folder, image.layer({"usr/local/bin/etcd": program}), Cmd=["etcd"])

    return cache.built("image-etcd", cache.key(program, _writer()), build)


def operator() -> Path:
    """The training operator, as its manifests want it."""
    program = golang.operator() / "manager"

    def build(folder: Path) -> None:
        image.write(folder, image.layer({"manager": program}), Entrypoint=["/manager"], User="65532:65532")

    return cache.built("image-operator", cache.key(program, _writer()), build)


def _debian(tar: Path, suite: str, packages: list[str]) -> list[str]:
    """A line in a .pth file joins the path but its own .pth files are not read: an editable Stoker stays outside."""
    lend = f'echo {IN_POD_PACKAGES} > "$1/usr/lib/python3/dist-packages/lab.pth"'
    lean = [f"path-exclude=/usr/share/{name}/*" for name in ("doc", "info", "locale", "man")]
    argv = ["mmdebstrap", "--quiet", "--mode=root", "--format=tar", "--variant=essential"]
    argv += [f"--dpkgopt={line}" for line in lean] + [f"--include={','.join(packages)}", f"--customize-hook={lend}"]
    return [*argv, suite, str(tar)]


def _writer() -> Path:
    return HERE / "image.py"
