import pytest

from stoker.cli.main import main


@pytest.mark.parametrize("action", ["push", "run"])
def test_an_archive_is_only_written_by_build(action: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["image", action, "script=train.py", "--base", "example/image:1", "-o", "image.tar"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "-o is for build" in line
