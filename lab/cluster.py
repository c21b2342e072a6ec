"""The lab as a whole: up, down, and what runs."""

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
    lending,
    machine,
    network,
    node,
    operators,
    packages,
    pki,
)
from lab.kubectl import Kubectl
from lab.places import CACHE, IMAGES, KUBECONFIG, LOCK, NODES, PROVISIONED, READY, STATE, VOLUMES
from lab.progress import say
from stoker.spec.errors import UserError

PATIENCE_S = 300
OURS = PROVISIONED / ".stoker-lab"
"""There, under what the hosts mount over it, when the folder is a lab's own."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Parts:
    """What the lab is made of, in the cache."""

    programs: Path
    images: dict[str, Path]
    operators: dict[str, Path]
    """Images of their programs."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Running:
    """What is known of a lab that is up."""

    key: str
    """Of the files it was made from."""
    keep: bool
    """Whether it stays when nobody uses it."""
    programs: str


def up(*, keep: bool, lend: Path | None = None) -> None:
    """Build what is not built, start what does not run. A lab that is not kept goes with the last of its users."""
    if missing := lacks():
        raise UserError(missing, remedy="Run `make lab` as root on a Debian 12 machine")
    with _locked():
        now, key = running(), cache.key(*_sources())
        if now is None and kept() and not keep:
            raise UserError("the lab of `make lab` does not answer", remedy="Run: make lab")
        if now is None or (now.key != key and (keep or not now.keep)):
            parts = build()
            _clear()
            network.check_free()
            try:
                _start(parts)
            except BaseException:
                _stop()
                raise
            now = Running(key=key, keep=keep, programs=str(parts.programs))
        elif now.key != key:
            say("the lab that runs was made by `make lab` from other files: it is used as it is")
        lending.lend(lend)
        lending.tell()
        written = READY.with_suffix(".new")
        written.write_text(json.dumps(asdict(replace(now, keep=now.keep or keep))))
        written.replace(READY)  # others read it without the lock


def down() -> None:
    with _locked():
        _clear()


def down_unless_kept() -> None:
    """For a lab that nobody uses. One that is being started by `make lab` is not ready yet, but will be kept."""
    with contextlib.suppress(BlockingIOError), _locked(wait=False):
        if not kept():
            _clear()


def running() -> Running | None:
    """The lab that runs; None when there is none, or half of one."""
    if not READY.exists() or set(host.alive()) != {"control", *NODES}:
        return None
    if not control.ready(PATIENCE_S):  # on a busy machine an answer may take long, and others use what would be cleared
        return None
    return Running(**json.loads(READY.read_text()))


def kept() -> bool:
    """Whether there is a lab that only `make lab` and `make lab-down` may take away, be it slow to answer or not."""
    return set(host.alive()) == {"control", *NODES} and READY.exists() and bool(json.loads(READY.read_text())["keep"])


def kubectl() -> Kubectl:
    return Kubectl(program=Path(json.loads(READY.read_text())["programs"]) / "kubectl")


def lacks() -> str | None:
    """Why this machine cannot run the lab, in a few words; None if it can."""
    parts = ("cluster", "operator", "trainer", "volcano")
    return machine.lacks(built=all(any(CACHE.glob(f"{name}-*")) for name in parts))


def build() -> Parts:
    """Debian's parts and Go's are made side by side: the ones wait for the network, the others for the processor."""
    packages.install()
    with ThreadPoolExecutor() as pool:
        base = pool.submit(images.base)
        programs, _ = golang.cluster(), golang.kwok()
        made = {"pause": images.pause(), "bare": images.bare(), "base": base.result()}
        made |= {"init": images.init(), "etcd": images.etcd()}
    return Parts(programs=programs, images=made, operators=images.operators())


def _start(parts: Parts) -> None:
    began = time.monotonic()
    VOLUMES.mkdir(parents=True, exist_ok=True)
    if not PROVISIONED.exists():
        PROVISIONED.mkdir()
        OURS.touch()
    cgroups.make(NODES)
    lending.lend(None)
    pki.make()
    shutil.copy(pki.kubeconfig("admin"), KUBECONFIG)
    hosts = {name: host.boot(name, parts.programs / "pause") for name in ["control", *NODES]}
    nodes = [hosts[name] for name in NODES]
    network.connect(hosts["control"], nodes)
    control.start(hosts["control"], parts.programs)
    kubectl = Kubectl(program=parts.programs / "kubectl")
    with ThreadPoolExecutor() as pool:
        work = [pool.submit(image.push, parts.images[name], IMAGES[name]) for name in IMAGES]
        work += [pool.submit(node.start, one, parts.programs) for one in nodes]
        work += [pool.submit(addons.install, kubectl)]
        work += [pool.submit(_operators, kubectl, parts)]
        for one in work:
            one.result()
    _wait(kubectl)
    say(f"the lab is up, in {time.monotonic() - began:.1f} s")


def _sources() -> list[Path]:
    here = Path(__file__).parent
    return [here / "go", here / "versions.toml", *sorted(here.glob("*.py"))]


def _operators(kubectl: Kubectl, parts: Parts) -> None:
    """Their images first: a pod that finds none asks again ten seconds later."""
    for name, folder in parts.operators.items():
        image.push(folder, operators.image(name))
    operators.install(kubectl)


def _wait(kubectl: Kubectl) -> None:
    kubectl("wait", "--for=create", "node", *NODES, f"--timeout={PATIENCE_S}s")
    kubectl("wait", "--for=condition=Ready", "node", *NODES, f"--timeout={PATIENCE_S}s")
    operators.wait(kubectl)


def _clear() -> None:
    """Whatever a lab left behind, whole, half or killed."""
    _stop()
    shutil.rmtree(STATE, ignore_errors=True)
    if host.none() and OURS.exists():  # another lab may have its own volumes mounted there
        OURS.unlink()
        with contextlib.suppress(OSError):  # somebody put something in
            PROVISIONED.rmdir()


def _stop() -> None:
    """All but the files: the logs of a lab that does not start are needed."""
    host.kill()
    network.disconnect()
    cgroups.remove()


@contextlib.contextmanager
def _locked(*, wait: bool = True) -> Iterator[None]:
    with open(LOCK, "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        yield
