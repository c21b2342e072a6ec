"""Debian packages are installed without removing packages or starting services."""

from pathlib import Path

import pytest

from lab import packages, versions
from stoker.spec.errors import UserError

pytestmark = pytest.mark.usefixtures("able")
USER_POLICY = "#!/bin/sh\nexit 101\n"


@pytest.fixture(autouse=True)
def policy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(packages, "POLICY", tmp_path / "policy-rc.d")
    return tmp_path / "policy-rc.d"


def test_containerd_and_runc_may_come_from_other_packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "status").touch()
    monkeypatch.setenv("DPKG_ADMINDIR", str(tmp_path))  # dpkg finds no installed package there
    required = set(versions.read().host_packages)
    assert required - set(packages.missing()) == {"containerd", "runc"}


def test_no_package_is_removed_for_another(tmp_path: Path, policy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = versions.FILE.read_text()
    listed = text[text.index("host = [") : text.index("base = [")]
    (tmp_path / "versions.toml").write_text(text.replace(listed, 'host = ["busybox"]\n'))  # conflicts with -static
    monkeypatch.setattr(versions, "FILE", tmp_path / "versions.toml")
    (tmp_path / "apt.conf").write_text('APT::Get::Simulate "true";\n')
    monkeypatch.setenv("APT_CONFIG", str(tmp_path / "apt.conf"))
    with pytest.raises(UserError, match="busybox, which would remove other packages"):
        packages.install()
    assert not policy.exists()


def test_the_policy_of_a_killed_install_is_removed_and_one_of_the_user_stays(policy: Path) -> None:
    policy.write_text(f"#!/bin/sh\n{packages.MARK}busybox\nexit 101\n")
    packages.install()
    assert not policy.exists()
    policy.write_text(USER_POLICY)
    packages.install()
    assert policy.read_text() == USER_POLICY
