import json
from pathlib import Path

import pytest

from stoker.cli.main import main


def test_a_machine_that_can_train_passes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "--runs", str(tmp_path)]) == 0
    out = capsys.readouterr().out
    assert "ok       torch" in out
    assert out.endswith("A run can be trained here.\n")
    assert main(["check", "--json"]) == 0
    assert {"name", "ok", "needed", "detail", "remedy"} == set(json.loads(capsys.readouterr().out)[0])
