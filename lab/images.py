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
    """The sandbox image of a pod."""
    program = golang.cluster() / "pause"

    def build(folder: Path) -> None:
        image.write(folder, image.layer({"pause": program}), Entrypoint=["/pause"])

    return cache.built("image-pause", cache.key(program, _writer()), build)


def bare() -> Path:
    """An image with busybox only, without Python."""

    def build(folder: Path) -> None:
        links = {f"bin/{name}": "busybox" for name in APPLETS}
        image.write(folder, image.layer({"bin/busybox": BUSYBOX, **links}), Cmd=["/bin/sh"])

    return cache.built("image-bare", cache.key(BUSYBOX, *APPLETS, _writer()), build)


def base() -> Path:
    """Debian with Python, for training pods. Packages such as torch are mounted by the nodes (PACKAGES)."""
    pinned = versions.read()

    def build(folder: Path) -> None:
        tar = folder / "tar"
        subprocess.run(_debian(tar, pinned.suite, pinned.base_packages), check=True)
        with open(tar, "rb") as stream:
            image.write(folder, stream, Cmd=["python3"])
        tar.unlink()

    inputs = cache.key(" ".join(_debian(Path(), pinned.suite, pinned.base_packages)), _writer())
    return cache.built("image-base", inputs, build)


def init() -> Path:
    """The init container of a PyTorchJob worker, which waits for the master. busybox's nslookup fails when the name is
    unknown in one of the search domains, so it is replaced."""

    def build(folder: Path) -> None:
        image.extend(folder, base(), image.layer({"usr/bin/nslookup": NSLOOKUP}))

    return cache.built("image-init", cache.key(NSLOOKUP, base().name, _writer()), build)


def etcd() -> Path:
    """An etcd server for runs with `on.rendezvous: etcd`, at the path of the official images."""
    program = golang.etcd() / "etcd"

    def build(folder: Path) -> None:
        image.write(folder, image.layer({"usr/local/bin/etcd": program}), Cmd=["etcd"])

    return cache.built("image-etcd", cache.key(program, _writer()), build)


def operators() -> dict[str, Path]:
    """The image of each operator, by the name of the container in its manifests."""
    trainer, volcano = golang.trainer(), golang.volcano()
    return {
        "training-operator": _program("operator", golang.operator() / "manager"),
        "jobset": _program("jobset", trainer / "jobset"),
        "trainer": _program("trainer", trainer / "trainer"),
        "admission": _program("admission", volcano / "webhook-manager"),
        "volcano-controllers": _program("controllers", volcano / "controller-manager"),
        "volcano-scheduler": _program("scheduler", volcano / "scheduler"),
    }


def _program(name: str, program: Path) -> Path:
    """An image with one program and a non-root user, as the operators' manifests expect."""

    def build(folder: Path) -> None:
        image.write(folder, image.layer({"manager": program}), Entrypoint=["/manager"], User="65532:65532")

    return cache.built(f"image-{name}", cache.key(program, _writer()), build)


def _debian(tar: Path, suite: str, packages: list[str]) -> list[str]:
    """The mmdebstrap command. A .pth line adds a folder to sys.path without that folder's .pth files, so an editable
    Stoker is not included."""
    add_path = f'echo {IN_POD_PACKAGES} > "$1/usr/lib/python3/dist-packages/lab.pth"'
    excluded = [f"path-exclude=/usr/share/{name}/*" for name in ("doc", "info", "locale", "man")]
    argv = ["mmdebstrap", "--quiet", "--mode=root", "--format=tar", "--variant=essential"]
    argv += [f"--dpkgopt={line}" for line in excluded] + [
        f"--include={','.join(packages)}",
        f"--customize-hook={add_path}",
    ]
    return [*argv, suite, str(tar)]


def _writer() -> Path:
    return HERE / "image.py"
