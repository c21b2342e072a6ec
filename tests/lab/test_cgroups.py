"""The cgroups of the lab, v1 or v2, are created and removed; other cgroups are not changed."""

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
def v2_root(monkeypatch: pytest.MonkeyPatch) -> Path:
    """The cgroup v2 tree of this machine. Beside v1 trees it has only the controllers that these do not use."""
    mounts = [line.split() for line in Path("/proc/self/mounts").read_text().splitlines()]
    [root, *_] = [Path(fields[1]) for fields in mounts if fields[2] == "cgroup2"]
    monkeypatch.setattr(cgroups, "ROOT", root)
    return root


@pytest.fixture
def sleeper() -> Iterator["subprocess.Popen[bytes]"]:
    process = subprocess.Popen(["sleep", "1000"])
    yield process
    process.kill()
    process.wait()


def test_a_cgroup_is_removed_once_its_last_process_has_ended(branch: str, sleeper: "subprocess.Popen[bytes]") -> None:
    pod = (cgroups.ROOT if (cgroups.ROOT / "cgroup.controllers").exists() else cgroups.ROOT / "memory") / branch / "pod"
    pod.mkdir(parents=True)
    (pod / "cgroup.procs").write_text(str(sleeper.pid))
    killer = threading.Timer(0.3, lambda: (sleeper.kill(), sleeper.wait()))
    killer.start()
    cgroups.remove()
    assert not pod.parent.exists()
    killer.join()
    assert sleeper.returncode == -signal.SIGKILL


def test_the_controllers_of_kubelet_are_enabled_and_disabled_again(v2_root: Path, branch: str) -> None:
    before = (v2_root / "cgroup.subtree_control").read_text().split()
    available = cgroups.CONTROLLERS & set((v2_root / "cgroup.controllers").read_text().split())
    cgroups.make(["node-1", "node-2"])
    for name in ["node-1", "node-2"]:
        assert available <= set((v2_root / branch / name / "cgroup.controllers").read_text().split())
        assert available <= set((v2_root / branch / name / "cgroup.subtree_control").read_text().split())
    cgroups.remove()
    assert (v2_root / "cgroup.subtree_control").read_text().split() == before
    assert not (v2_root / branch).exists()


def test_a_container_that_cannot_enable_controllers_is_unsupported(
    v2_root: Path, branch: str, sleeper: "subprocess.Popen[bytes]", monkeypatch: pytest.MonkeyPatch
) -> None:
    cgroups.make([])
    container = v2_root / branch / "container"
    container.mkdir()
    available = cgroups.CONTROLLERS & set((container / "cgroup.controllers").read_text().split())
    with monkeypatch.context() as inside:
        inside.setattr(cgroups, "ROOT", container)
        assert cgroups.unsupported() is None
        (container / "cgroup.procs").write_text(str(sleeper.pid))
        with pytest.raises(OSError, match="busy") as refused:
            (container / "cgroup.subtree_control").write_text(f"+{min(available)}")
        assert refused.value.errno == errno.EBUSY
        assert f"cannot enable {', '.join(sorted(available))}" in str(cgroups.unsupported())
