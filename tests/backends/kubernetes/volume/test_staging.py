"""What is uploaded for a run, and the paths in it."""

import json
from pathlib import Path
from typing import Any

import pytest

from stoker.api.opening import begin
from stoker.backends.kubernetes.volume.staging import staged, staged_spec
from stoker.backends.transfer.send import Item
from stoker.rundir import RunDir
from stoker.spec.errors import UserError
from stoker.spec.load import load
from stoker.spec.run import ScriptSpec


def begun_run(tmp_path: Path, *overrides: str) -> RunDir:
    spec = load(
        None, ["name=demo", "model=gpt2-micro", "model.layers=1", "batch.length=16", "until.steps=5", *overrides]
    ).spec
    return begin(spec, runs=tmp_path / "runs").run


def text(item: Item, name: str) -> Any:
    source = item.files[name]
    return json.loads(source if isinstance(source, bytes) else source.read_bytes())


def test_the_run_directory_comes_last_and_names_the_volume(tmp_path: Path, tokens: Path) -> None:
    data, run = staged(begun_run(tmp_path, f"data.path={tokens}"))
    assert data.key
    assert data.into == f"data/{data.key}"
    assert "index.json" in data.files
    assert not any(name.startswith(".") for name in data.files)
    assert run.into == "runs/demo"
    assert run.key is None
    assert list(run.files)[-1] == "spec.yaml"
    assert "lock" not in run.files
    assert text(run, "data.json") == {"shards": f"/stoker/data/{data.key}", "key": data.key}
    assert set(run.folders) == {"logs", "ledger", "checkpoints"}
    assert any(name.startswith("tokenizer/") for name in run.files)


def test_a_mixture_brings_the_sets_that_it_draws_from(tmp_path: Path, books: Path) -> None:
    mix = [f"data.mix=[{{path: {books}/book-0.txt, weight: 1}}, {{path: {books}/book-1.txt, weight: 3}}]"]
    *sources, mixture, run = staged(begun_run(tmp_path, *mix, "data.tokenizer={train: 300}"))
    assert len(sources) == 2
    folders = [source["folder"] for source in text(mixture, "mix.json")["sources"]]
    assert folders == [f"../{source.key}" for source in sources]
    assert text(run, "data.json")["shards"] == f"/stoker/{mixture.into}"


def test_weights_of_other_models_come_once(tmp_path: Path, books: Path) -> None:
    folder = tmp_path / "gpt"
    folder.mkdir()
    run = RunDir(tmp_path / "runs/demo")
    run.create(ScriptSpec(name="demo", script="train.py"), None)
    (folder / "config.json").write_text("{}")
    (folder / "model.safetensors").write_text("weights")
    (folder / "tf_model.h5").write_text("the same for others")
    ref = {"path": str(folder), "step": None, "key": "k" * 64}
    (run.path / "origins.json").write_text(json.dumps({"init": ref, "teacher": ref}))
    weights, last = staged(run)
    assert set(weights.files) == {"config.json", "model.safetensors"}
    assert weights.into == f"models/{'k' * 32}"
    assert {origin["path"] for origin in text(last, "origins.json").values()} == {f"/stoker/models/{'k' * 32}"}
    assert books.is_dir()


def test_a_stream_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "set"
    folder.mkdir()
    (folder / "stream.json").write_text("{}")
    run = RunDir(tmp_path / "runs/demo")
    run.create(ScriptSpec(name="demo", script="train.py"), None)
    (run.path / "data.json").write_text(json.dumps({"shards": str(folder), "key": "k"}))
    with pytest.raises(UserError, match="still being written"):
        staged(run)


def test_a_run_that_resumes_uploads_only_its_spec(tmp_path: Path) -> None:
    """Its data may be missing on this machine."""
    run = RunDir(tmp_path / "runs/demo")
    run.create(ScriptSpec(name="demo", script="train.py"), None)
    (run.path / "data.json").write_text(json.dumps({"shards": str(tmp_path / "gone"), "key": "k"}))
    item = staged_spec(run)
    assert list(item.files) == ["spec.yaml"]
    assert (item.into, item.gone) == ("runs/demo", ("exit.json", ".members/nodes"))
