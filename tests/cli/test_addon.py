from pathlib import Path

import pytest
import yaml

from stoker.cli.main import main


@pytest.fixture(autouse=True)
def no_cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "none"))


def test_a_dry_run_prints_objects_that_kubectl_can_read(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["addon", "etcd", "--image", "quay.example/etcd:v3.5.33", "--namespace", "a", "--dry-run"]) == 0
    objects = list(yaml.safe_load_all(capsys.readouterr().out))
    assert [item["kind"] for item in objects] == ["NetworkPolicy", "Service", "Service", "Deployment"]


def test_an_image_must_be_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["addon", "etcd"]) == 2
    assert "--image is missing. Name an image" in capsys.readouterr().err
