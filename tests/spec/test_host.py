import os
from pathlib import Path

from stoker.spec.host import cgroup_limits, memory


def test_the_memory_of_this_machine_is_plausible() -> None:
    assert 2**28 < memory() <= os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def test_the_limits_of_the_parent_cgroups_count(tmp_path: Path) -> None:
    (tmp_path / "cgroup").write_text("0::/user/mine\n")
    root = tmp_path / "fs"
    (root / "user" / "mine").mkdir(parents=True)
    assert cgroup_limits(tmp_path / "cgroup", root) == []
    (root / "user" / "mine" / "memory.max").write_text("max\n")
    (root / "user" / "memory.max").write_text("7000\n")
    (root / "memory.max").write_text("9000\n")
    assert min(cgroup_limits(tmp_path / "cgroup", root)) == 7000


def test_cgroups_of_version_1_count_too(tmp_path: Path) -> None:
    (tmp_path / "cgroup").write_text("5:cpu,memory:/docker/1\n3:pids:/docker/1\n")
    group = tmp_path / "fs" / "memory" / "docker" / "1"
    group.mkdir(parents=True)
    (group / "memory.limit_in_bytes").write_text("5000\n")
    assert cgroup_limits(tmp_path / "cgroup", tmp_path / "fs") == [5000]
