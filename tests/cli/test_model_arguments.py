import re

import pytest

from stoker.cli.main import MODEL_VERBS, VERBS, main
from stoker.inference.export import SHARD_BYTES
from stoker.models.generate import Settings


def help_of(verb: str, capsys: pytest.CaptureFixture[str]) -> str:
    with pytest.raises(SystemExit):
        main([verb, "--help"])
    return " ".join(capsys.readouterr().out.split())


def test_the_help_of_generate_shows_the_real_defaults(capsys: pytest.CaptureFixture[str]) -> None:
    text, settings = help_of("generate", capsys), Settings()
    for option in ("tokens", "temperature", "top_p", "seed", "samples"):
        value = getattr(settings, option)
        assert re.search(rf"--{option.replace('_', '-')} [A-Z][^(]*\({value:g}\)", text), option


def test_the_help_of_export_shows_the_real_size_of_a_file(capsys: pytest.CaptureFixture[str]) -> None:
    assert f"({SHARD_BYTES // 10**9}GB)" in help_of("export", capsys)


def test_a_mistyped_option_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    for verb in MODEL_VERBS:
        assert verb in VERBS
        with pytest.raises(SystemExit) as ended:
            main([verb, "--no-such-option"])
        assert ended.value.code == 2
        assert f"usage: stoker {verb}" in capsys.readouterr().err
