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


def operators() -> dict[str, Path]:
    """What the pods of each operator run, by the name of the container that its manifests have."""
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
    """As the operators' manifests want it: one program, and a user that is not root."""

    def build(folder: Path) -> None:
        image.write(folder, image.layer({"manager": program}), Entrypoint=["/manager"], User="65532:65532")

    return cache.built(f"image-{name}", cache.key(program, _writer()), build)


def _debian(tar: Path, suite: str, packages: list[str]) -> list[str]:
    """A line in a .pth file joins the path but its own .pth files are not read: an editable Stoker stays outside."""
    lend = f'echo {IN_POD_PACKAGES} > "$1/usr/lib/python3/dist-packages/lab.pth"'
    lean = [f"path-exclude=/usr/share/{name}/*" for name in ("doc", "info", "locale", "man")]
    argv = ["mmdebstrap", "--quiet", "--mode=root", "--format=tar", "--variant=essential"]
    argv += [f"--dpkgopt={line}" for line in lean] + [f"--include={','.join(packages)}", f"--customize-hook={lend}"]
    return [*argv, suite, str(tar)]


def _writer() -> Path:
    return HERE / "image.py"
