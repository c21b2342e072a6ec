from pathlib import Path

import pytest

from stoker.spec.change import difference
from stoker.spec.errors import UserError
from stoker.spec.load import load
from stoker.spec.run import RunSpec, ScriptSpec


def write(folder: Path, text: str) -> Path:
    path = folder / "mine.yaml"
    path.write_text(text)
    return path


def test_a_run_file_with_a_script_needs_neither_model_nor_data(tmp_path: Path) -> None:
    file = write(tmp_path, "script: train.py\nargs: [--epochs, '3']\non: {workers: 2}\n")
    spec = load(file, []).spec
    assert isinstance(spec, ScriptSpec)
    assert (spec.name, spec.script, spec.args, spec.on.workers) == (
        "mine",
        str(tmp_path / "train.py"),
        ["--epochs", "3"],
        2,
    )


@pytest.mark.parametrize("line", ["model: gpt2-small", "data: x", "until: {steps: 1}", "optim: {lr: 1e-3}"])
def test_keys_that_a_script_sets_itself_are_refused(tmp_path: Path, line: str) -> None:
    key = line.partition(":")[0]
    with pytest.raises(UserError, match=f"{key}.* has no effect: a script sets that itself"):
        load(write(tmp_path, f"script: train.py\n{line}\n"), [])


ON = "on: {kind: kubernetes, image: team/torch}\n"


@pytest.mark.parametrize("script", ["train.py", "./train.py", "~/train.py"])
def test_a_script_that_would_not_be_in_the_pods_is_refused(tmp_path: Path, script: str) -> None:
    (tmp_path / "train.py").write_text("")
    file = write(tmp_path, f"script: {script}\n{ON}")
    with pytest.raises(UserError, match=rf"mine\.yaml:1: script {script} is a file on this machine") as error:
        assert load(file, []).launchable
    assert "on.registry=" in error.value.remedy
    assert "script: /app/train.py" in error.value.remedy
    assert load(file, ["on.registry=team/runs"]).launchable.script.endswith("/train.py")
    assert load(file, ["on.kind=local", "on.image=null"]).launchable
    assert load(file, []).spec, "other verbs, such as image build, may use it"


def test_a_path_in_the_image_is_left_as_it_was_written(tmp_path: Path) -> None:
    assert load(write(tmp_path, f"script: /app/train.py\n{ON}"), []).launchable.script == "/app/train.py"


def test_arguments_without_a_script_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="args has no effect: no script is set"):
        load(write(tmp_path, "data: x\nuntil: {steps: 1}\nargs: [a]\n"), [])


def test_secrets_are_named_by_their_source_and_a_list_means_the_environment(tmp_path: Path) -> None:
    file = write(tmp_path, "script: t.py\nsecrets: [HF_TOKEN, WANDB_API_KEY]\n")
    assert load(file, []).spec.secrets == {"HF_TOKEN": "env:HF_TOKEN", "WANDB_API_KEY": "env:WANDB_API_KEY"}
    file = write(tmp_path, "script: t.py\nsecrets: {A: 'env:B', C: 'file:./c'}\n")
    assert load(file, ["secrets.D=env:E"]).spec.secrets == {"A": "env:B", "C": f"file:{tmp_path}/c", "D": "env:E"}


def test_a_secret_itself_in_a_run_file_is_refused_and_not_repeated(tmp_path: Path) -> None:
    with pytest.raises(UserError) as error:
        load(write(tmp_path, "script: t.py\nsecrets: {TOKEN: hunter2}\n"), [])
    assert "secrets.TOKEN has no source" in str(error.value)
    assert "hunter2" not in str(error.value)


def test_the_users_own_code_can_be_the_model_and_the_data(tmp_path: Path) -> None:
    spec = load(write(tmp_path, "model: my_pkg.mod:build\ndata: my_pkg.mod:source\nuntil: {steps: 1}\n"), []).spec
    assert isinstance(spec, RunSpec)
    assert (spec.model.family, spec.data.path) == ("my_pkg.mod:build", "my_pkg.mod:source")


def test_a_script_and_a_model_are_never_the_same_run(tmp_path: Path) -> None:
    script = load(write(tmp_path, "script: t.py\n"), []).spec
    model = load(write(tmp_path, "data: x\nuntil: {steps: 1}\n"), []).spec
    changes = difference(script, model)
    assert changes.refused["script"] == (str(tmp_path / "t.py"), None)


def test_the_source_of_a_secret_may_change_and_is_not_shown(tmp_path: Path) -> None:
    old = load(write(tmp_path, "script: t.py\nsecrets: {A: 'env:B'}\n"), []).spec
    new = load(write(tmp_path, "script: t.py\nsecrets: {A: 'env:C'}\n"), []).spec
    assert difference(old, new).allowed == {"secrets.A": ("…", "…")}


def test_a_script_whose_name_is_a_number_is_a_file_too() -> None:
    with pytest.raises(UserError, match="script 5 is a file on this machine"):
        assert load(None, ["script=5", "on.kind=kubernetes"]).launchable
