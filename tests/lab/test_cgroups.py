"""The lab's branch of the cgroup tree, old or new, comes and goes; the rest of the tree stays as it was."""

import errno
import signal
import subprocess
import threading
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from lab import cgroups

pytestmark = pytest.mark.usefixtures("able")


@pytest.fixture(autouse=True)
def branch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    name = f"stoker-test-{uuid.uuid4().hex[:8]}"
    monkeypatch.setattr(cgroups, "CGROUP", name)
    monkeypatch.setattr(cgroups, "BEFORE", tmp_path / "controllers")
    yield name
    cgroups.remove()


@pytest.fixture
def new_tree(monkeypatch: pytest.MonkeyPatch) -> Path:
    """This machine's tree of the new kind; beside old ones it has only the controllers that they leave."""
    mounts = [line.split() for line in Path("/proc/self/mounts").read_text().splitlines()]
    [found, *_] = [Path(words[1]) for words in mounts if words[2] == "cgroup2"]
    monkeypatch.setattr(cgroups, "ROOT", found)
    return found


@pytest.fixture
def sleeper() -> Iterator["subprocess.Popen[bytes]"]:
    process = subprocess.Popen(["sleep", "1000"])
    yield process
    process.kill()
    process.wait()


def test_a_branch_goes_once_its_last_process_is_gone(branch: str, sleeper: "subprocess.Popen[bytes]") -> None:
    pod = (cgroups.ROOT if (cgroups.ROOT / "cgroup.controllers").exists() else cgroups.ROOT / "memory") / branch / "pod"
    pod.mkdir(parents=True)
    (pod / "cgroup.procs").write_text(str(sleeper.pid))
    killer = threading.Timer(0.3, lambda: (sleeper.kill(), sleeper.wait()))
    killer.start()
    cgroups.remove()
    assert not pod.parent.exists()
    killer.join()
    assert sleeper.returncode == -signal.SIGKILL


def test_the_root_hands_down_what_kubelet_wants_and_in_the_end_what_it_did_before(new_tree: Path, branch: str) -> None:
    before = (new_tree / "cgroup.subtree_control").read_text().split()
    offered = cgroups.CONTROLLERS & set((new_tree / "cgroup.controllers").read_text().split())
    cgroups.make(["node-1", "node-2"])
    for name in ["node-1", "node-2"]:
        assert offered <= set((new_tree / branch / name / "cgroup.controllers").read_text().split())
        assert offered <= set((new_tree / branch / name / "cgroup.subtree_control").read_text().split())
    cgroups.remove()
    assert (new_tree / "cgroup.subtree_control").read_text().split() == before
    assert not (new_tree / branch).exists()


def test_a_container_that_cannot_hand_down_is_told_so(
    new_tree: Path, branch: str, sleeper: "subprocess.Popen[bytes]", monkeypatch: pytest.MonkeyPatch
) -> None:
    cgroups.make([])
    container = new_tree / branch / "container"
    container.mkdir()
    offered = cgroups.CONTROLLERS & set((container / "cgroup.controllers").read_text().split())
    with monkeypatch.context() as inside:
        inside.setattr(cgroups, "ROOT", container)
        assert cgroups.unsupported() is None
        (container / "cgroup.procs").write_text(str(sleeper.pid))
        with pytest.raises(OSError, match="busy") as refused:
            (container / "cgroup.subtree_control").write_text(f"+{min(offered)}")
        assert refused.value.errno == errno.EBUSY
        assert f"cannot enable {', '.join(sorted(offered))}" in str(cgroups.unsupported())
