from pathlib import Path

from stoker.backends.local.check import check


def test_a_machine_with_the_train_extra_has_all_that_is_needed(tmp_path: Path) -> None:
    findings = check(tmp_path / "runs")
    assert [finding for finding in findings if finding.needed and not finding.ok] == []
    names = {finding.name for finding in findings}
    assert {"Python", "torch", "compiler", "cores", "memory", "disk", "/dev/shm", "GPU", "CPU bf16"} <= names


def test_whatever_is_not_ok_comes_with_a_remedy(tmp_path: Path) -> None:
    assert all(finding.remedy for finding in check(tmp_path) if not finding.ok)
