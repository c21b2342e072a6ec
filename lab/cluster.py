"""Builds, starts and stops the lab."""

import contextlib
import fcntl
import json
import shutil
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from lab import (
    addons,
    cache,
    cgroups,
    control,
    golang,
    host,
    image,
    images,
    machine,
    network,
    node,
    operators,
    packages,
    pki,
    shared_packages,
)
from lab.kubectl import Kubectl
from lab.places import CACHE, IMAGES, KUBECONFIG, LOCK, NODES, PROVISIONED, READY, STATE, VOLUMES
from lab.progress import log
from stoker.spec.errors import UserError

TIMEOUT_S = 300
OWNER_FILE = PROVISIONED / ".stoker-lab"
"""Marks the folder as created by a lab. The hosts mount over it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Parts:
    """The build outputs of the lab, in the cache."""

    programs: Path
    images: dict[str, Path]
    operators: dict[str, Path]
    """The image of each operator's program."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Running:
    """A running lab."""

    key: str
    """The hash of its source files."""
    keep: bool
    """Whether it keeps running when no test session uses it."""
    programs: str


def up(*, keep: bool, packages_folder: Path | None = None) -> None:
    """Build and start the lab unless it is running. Without `keep`, it stops with the last test session."""
    if reason := unsupported():
        raise UserError(reason, remedy="Run `make lab` as root on a Debian 12 machine")
    with _locked():
        current, key = running(), cache.key(*_sources())
        if current is None and kept() and not keep:
            raise UserError("the lab started by `make lab` does not respond", remedy="Run: make lab")
        if current is None or (current.key != key and (keep or not current.keep)):
            parts = build()
            _clear()
            network.check_free()
            try:
                _start(parts)
            except BaseException:
                _stop()
                raise
            current = Running(key=key, keep=keep, programs=str(parts.programs))
        elif current.key != key:
            log("the running lab was started by `make lab` from other source files: using it unchanged")
        shared_packages.share(packages_folder)
        shared_packages.describe()
        temporary = READY.with_suffix(".new")
        temporary.write_text(json.dumps(asdict(replace(current, keep=current.keep or keep))))
        temporary.replace(READY)  # read by other processes without the lock


def down() -> None:
    with _locked():
        _clear()


def down_unless_kept() -> None:
    """Stop an unused lab. Does nothing while `make lab` holds the lock: that lab is not ready yet, but will be kept."""
    with contextlib.suppress(BlockingIOError), _locked(wait=False):
        if not kept():
            _clear()


def running() -> Running | None:
    """Return the running lab, or None if there is none or it is incomplete."""
    if not READY.exists() or set(host.alive()) != {"control", *NODES}:
        return None
    if not control.ready(TIMEOUT_S):  # slow on a busy machine; do not clear a lab that others use
        return None
    return Running(**json.loads(READY.read_text()))


def kept() -> bool:
    """Whether a lab exists that only `make lab` and `make lab-down` may stop, even if it does not respond."""
    return set(host.alive()) == {"control", *NODES} and READY.exists() and bool(json.loads(READY.read_text())["keep"])


def kubectl() -> Kubectl:
    return Kubectl(program=Path(json.loads(READY.read_text())["programs"]) / "kubectl")


def unsupported() -> str | None:
    """Return why this machine cannot run the lab, or None."""
    parts = ("cluster", "operator", "trainer", "volcano")
    return machine.unsupported(built=all(any(CACHE.glob(f"{name}-*")) for name in parts))


def build() -> Parts:
    """Build the Debian and Go parts in parallel: the former wait for the network, the latter for the CPU."""
    packages.install()
    with ThreadPoolExecutor() as pool:
        base = pool.submit(images.base)
        programs, _ = golang.cluster(), golang.kwok()
        built = {"pause": images.pause(), "bare": images.bare(), "base": base.result()}
        built |= {"init": images.init(), "etcd": images.etcd()}
    return Parts(programs=programs, images=built, operators=images.operators())


def _start(parts: Parts) -> None:
    start = time.monotonic()
    VOLUMES.mkdir(parents=True, exist_ok=True)
    if not PROVISIONED.exists():
        PROVISIONED.mkdir()
        OWNER_FILE.touch()
    cgroups.make(NODES)
    shared_packages.share(None)
    pki.make()
    shutil.copy(pki.kubeconfig("admin"), KUBECONFIG)
    hosts = {name: host.boot(name, parts.programs / "pause") for name in ["control", *NODES]}
    nodes = [hosts[name] for name in NODES]
    network.connect(hosts["control"], nodes)
    control.start(hosts["control"], parts.programs)
    kubectl = Kubectl(program=parts.programs / "kubectl")
    with ThreadPoolExecutor() as pool:
        work = [pool.submit(image.push, parts.images[name], IMAGES[name]) for name in IMAGES]
        work += [pool.submit(node.start, each, parts.programs) for each in nodes]
        work += [pool.submit(addons.install, kubectl)]
        work += [pool.submit(_operators, kubectl, parts)]
        for task in work:
            task.result()
    _wait(kubectl)
    log(f"the lab is running, started in {time.monotonic() - start:.1f} s")


def _sources() -> list[Path]:
    here = Path(__file__).parent
    return [here / "go", here / "versions.toml", *sorted(here.glob("*.py"))]


def _operators(kubectl: Kubectl, parts: Parts) -> None:
    """Push the images first: a failed pull is retried only after ten seconds."""
    for name, folder in parts.operators.items():
        image.push(folder, operators.image(name))
    operators.install(kubectl)


def _wait(kubectl: Kubectl) -> None:
    kubectl("wait", "--for=create", "node", *NODES, f"--timeout={TIMEOUT_S}s")
    kubectl("wait", "--for=condition=Ready", "node", *NODES, f"--timeout={TIMEOUT_S}s")
    operators.wait(kubectl)


def _clear() -> None:
    """Remove everything that a lab left behind, even after a crash."""
    _stop()
    shutil.rmtree(STATE, ignore_errors=True)
    if host.none() and OWNER_FILE.exists():  # another lab may have mounted its volumes there
        OWNER_FILE.unlink()
        with contextlib.suppress(OSError):  # not empty
            PROVISIONED.rmdir()


def _stop() -> None:
    """Stop everything but keep the files: the logs show why a lab did not start."""
    host.kill()
    network.disconnect()
    cgroups.remove()


@contextlib.contextmanager
def _locked(*, wait: bool = True) -> Iterator[None]:
    with open(LOCK, "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        yield
