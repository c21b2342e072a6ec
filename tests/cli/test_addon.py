from pathlib import Path

import pytest
import yaml

from stoker.cli.main import main


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "none"))


def test_a_dry_run_prints_objects_that_kubectl_can_read(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["addon", "etcd", "--image", "quay.example/etcd:v3.5.33", "--namespace", "a", "--dry-run"]) == 0
    found = list(yaml.safe_load_all(capsys.readouterr().out))
    assert [one["kind"] for one in found] == ["NetworkPolicy", "Service", "Service", "Deployment"]


def test_an_image_must_be_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["addon", "etcd"]) == 2
    assert "--image is missing. Name an image" in capsys.readouterr().err
