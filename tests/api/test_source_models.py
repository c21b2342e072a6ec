"""Source models are checked before anything is created, and the spec that they complete is validated."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from stoker.api.opening import begin
from stoker.api.source_models import known_vocab, teacher_shape
from stoker.data.shards import TokenSet
from stoker.rundir import RunDir
from stoker.spec import hf_config
from stoker.spec.errors import UserError
from stoker.spec.load import load
from stoker.spec.model import Model

SMALL = {"layers": 1, "heads": 2, "width": 16}
REQUIRED = ["until.steps=2", "batch.sequences=4", "name=new"]
Folder = Callable[..., Path]


@pytest.fixture
def folder(tmp_path: Path, tokens: Path) -> Folder:
    """A transformers folder without weights, which are not read before the run is created."""

    def write(**shape: object) -> Path:
        token_set, path = TokenSet.open(tokens), tmp_path / "model"
        shutil.copytree(token_set.tokenizer, path)
        config = hf_config.config(Model(vocab=token_set.vocab, **shape), dtype="float32", end=token_set.end)
        (path / hf_config.CONFIG_FILE).write_text(json.dumps(config))
        return path

    return write


def create_run(tmp_path: Path, *overrides: str) -> RunDir:
    return begin(load(None, [*REQUIRED, *overrides]).spec, runs=tmp_path / "runs").run


def test_a_sequence_may_be_as_long_as_the_context_of_the_source_model(
    tmp_path: Path, tokens: Path, folder: Folder
) -> None:
    model = folder(family="llama", context=4096, **SMALL)
    spec = create_run(tmp_path, f"data={tokens}", f"init={model}", "batch.length=2048").spec()
    assert (spec.model.family, spec.model.context, spec.batch.length) == ("llama", 4096, 2048)


def test_a_sequence_longer_than_the_context_of_the_source_model_is_refused(
    tmp_path: Path, tokens: Path, folder: Folder
) -> None:
    with pytest.raises(UserError, match=r"batch\.length 64 is more than model\.context 32\. Set batch\.length to 32"):
        create_run(tmp_path, f"data={tokens}", f"init={folder(context=32, **SMALL)}", "batch.length=64")
    assert not (tmp_path / "runs" / "new").exists()


def test_the_objective_must_be_that_of_the_source_model(tmp_path: Path, pairs: Path, folder: Folder) -> None:
    model = folder(family="bert", context=64, **SMALL)
    for file in (pairs / "tokenizer").iterdir():
        shutil.copy(file, model)
    vocab = json.loads((pairs / "index.json").read_text())["vocab"]
    config = json.loads((model / hf_config.CONFIG_FILE).read_text()) | {"vocab_size": vocab}
    (model / hf_config.CONFIG_FILE).write_text(json.dumps(config))
    overrides = [f"data={pairs}", f"init={model}", "batch.length=32"]
    assert create_run(tmp_path, *overrides, "objective.kind=masked").spec().model.family == "bert"
    with pytest.raises(UserError, match=r"log\.attention is not supported for bert"):
        create_run(tmp_path, *overrides, "objective.kind=masked", "log.attention=true")
    with pytest.raises(UserError, match=r"objective\.kind is causal, and a bert is trained with masked"):
        create_run(tmp_path, *overrides, "objective.kind=causal", "name=other")


@pytest.mark.parametrize("verb", ["train", "launch"])
def test_a_source_model_too_large_for_the_machine_is_refused_by_its_config(
    stoker, tokens: Path, folder: Folder, verb: str
) -> None:
    huge = {"layers": 80, "heads": 64, "width": 8192, "kv_heads": 8, "hidden": 28672, "context": 4096}
    overrides = [f"data={tokens}", f"init={folder(family='llama', **huge)}", "batch.length=32", "on.device=cpu"]
    done = stoker(verb, *REQUIRED, *overrides, "--dry-run", code=2)
    (line,) = done.stderr.strip().splitlines()
    assert line.startswith("stoker: training this llama needs at least 1")
    assert not (stoker.folder / "runs").exists()


def test_tokenizer_and_teacher_are_known_before_anything_is_created(
    tmp_path: Path, tokens: Path, folder: Folder, books: Path
) -> None:
    token_set = TokenSet.open(tokens)
    teacher = folder(family="llama", context=64, **SMALL)
    overrides = [*REQUIRED, f"data={books}", f"data.tokenizer={tokens / 'tokenizer'}", "batch.length=32"]
    spec, run = load(None, [*overrides, f"objective.teacher={teacher}"]).spec, RunDir(tmp_path / "runs" / "new")
    assert known_vocab(spec.data) == known_vocab(load(None, [*REQUIRED, f"data={tokens}"]).spec.data) == token_set.vocab
    assert known_vocab(load(None, [*REQUIRED, f"data={books}"]).spec.data) is None
    shape = teacher_shape(spec, run)
    assert shape == Model(family="llama", vocab=token_set.vocab, context=64, **SMALL)
    begin(spec, runs=tmp_path / "runs")
    assert teacher_shape(spec, run) == shape
    shutil.rmtree(teacher)
    assert teacher_shape(spec, run) is None
