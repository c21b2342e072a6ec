"""~/.config/stoker/config.yaml: the user's defaults for runs on Kubernetes."""

import re
from pathlib import Path

import pytest

from stoker.cli.main import main
from stoker.spec.errors import UserError
from stoker.spec.load import load
from stoker.spec.user_config import KEYS, config_file, user_default

GUIDE = Path(__file__).parents[2] / "docs" / "guides" / "kubernetes.md"
LEAST = ("data=x", "until.steps=1")
CLUSTER = (*LEAST, "on.kind=kubernetes")


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "config" / "stoker" / "config.yaml"
    file.parent.mkdir(parents=True)
    return file


def refusal(*overrides: str) -> str:
    with pytest.raises(UserError) as error:
        load(None, overrides)
    assert "\n" not in str(error.value)
    return str(error.value)


def test_its_values_are_the_defaults_of_a_run_on_kubernetes(config: Path) -> None:
    config.write_text("# mine\nregistry: team/runs\nimage: team/torch:1\nvolume: training\ncontext: work\n")
    loaded = load(None, CLUSTER)
    on = loaded.spec.on.model_dump()
    assert [on[key] for key in ("registry", "image", "volume", "context", "namespace")] == [
        "team/runs",
        "team/torch:1",
        "training",
        "work",
        None,
    ]
    assert str(loaded.origins["on.registry"]) == f"{config}:2"
    assert set(loaded.from_user_config) == {"on.registry", "on.image", "on.volume", "on.context"}


def test_a_run_file_and_overrides_rank_above_it(config: Path, tmp_path: Path) -> None:
    config.write_text("image: team/torch:1\nvolume: training\nregistry: team/runs\n")
    file = tmp_path / "mine.yaml"
    file.write_text("data: x\nuntil: {steps: 1}\non: {kind: kubernetes, image: of-the-file, registry: null}\n")
    loaded = load(file, ["on.volume=of-the-overrides"])
    on = loaded.spec.on.model_dump()
    assert (on["image"], on["volume"], on["registry"]) == ("of-the-file", "of-the-overrides", None)
    assert [str(setting.origin) for setting in loaded.settings["on.image"]] == [f"{file}:3", f"{config}:1", "default"]
    assert loaded.from_user_config == {}


def test_a_run_on_this_machine_does_not_read_it(config: Path) -> None:
    config.write_text("no such key: 1\n")
    assert load(None, LEAST).spec.on.kind == "local"


def test_without_a_file_nothing_changes(config: Path) -> None:
    assert not config.exists()
    assert load(None, CLUSTER).spec.on.model_dump()["registry"] is None
    assert user_default("context") is None


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("regsitry: team/runs\n", "{file}:1: regsitry is unknown. Did you mean registry?"),
        ("flavour: x\n", "{file}:1: flavour is unknown. It takes context, namespace, image, registry, volume"),
        (
            "volume: Not A Name\n",
            "{file}:1: on.volume",
        ),
        ("image: 5\n", "{file}:1: image is no text. Write text, in quotes if it looks like a number"),
        ("image: me:secret@team/torch\n", "{file}:1: on.image: it contains a user name or password"),
        ("- registry\n", "{file} is not a config file: it has no keys. Write lines such as registry: "),
        ("image: {a: 1\n", "{file}:2: not YAML"),
        ("image: a\nimage: b\n", "{file}:2: image is set twice"),
    ],
)
def test_a_mistake_in_it_names_the_file_and_the_line(config: Path, text: str, problem: str) -> None:
    config.write_text(text)
    assert refusal(*CLUSTER).startswith(problem.format(file=config))


def test_a_bomb_of_aliases_is_refused(config: Path) -> None:
    lines = ["a: &a [x, x, x, x, x, x, x, x, x]"] + [
        f"{name}: &{name} [{', '.join([f'*{before}'] * 9)}]" for before, name in zip("abcdefg", "bcdefgh", strict=True)
    ]
    config.write_text("\n".join(lines))
    assert "it holds more than" in refusal(*CLUSTER)


def test_a_relative_config_home_is_ignored(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", "here")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert config_file() == tmp_path / ".config" / "stoker" / "config.yaml"


def test_launch_shows_the_values_that_come_from_it(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config.write_text("image: team/torch:1\nvolume: training\n")
    assert main(["launch", *CLUSTER, "on.image=other:1", "--dry-run"]) == 0
    out, err = capsys.readouterr()
    assert f"on.volume=training from {config}" in err
    assert "on.image" not in err
    assert "claimName: training" in out


def test_explain_names_the_file_and_the_line(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config.write_text("volume: training\n")
    assert main(["explain", "on.volume", *CLUSTER]) == 0
    assert f'on.volume = "training"\n  from {config}:1\n' in capsys.readouterr().out


def test_the_guide_shows_every_key(config: Path) -> None:
    block = re.findall(r"config\.yaml.*?```\n(.*?)```", GUIDE.read_text(), re.DOTALL)[0]
    config.write_text(block)
    assert set(load(None, CLUSTER).from_user_config) == {f"on.{key}" for key in KEYS}
