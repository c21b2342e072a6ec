"""Transformers loads exported folders, and the record says how they were checked."""

import hashlib
import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer, GPT2Config, GPT2LMHeadModel

from stoker import __version__
from stoker.inference.export import Exported, default_folder, export
from stoker.inference.importing import import_model
from stoker.models.gpt2 import SPEC
from stoker.models.load import load_model
from stoker.rundir import RunDir
from stoker.spec.errors import UserError
from stoker.train.choices import DTYPES, Precision
from tests.training import training_in_process

pytestmark = pytest.mark.usefixtures("one_thread")
FILES = {
    "README.md", "config.json", "generation_config.json", "special_tokens_map.json", "stoker.json", "tokenizer.json",
    "tokenizer_config.json",
}  # fmt: skip


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory, tokens: Path) -> RunDir:
    with training_in_process(tmp_path_factory.mktemp("place"), tokens) as train:
        return train("name=tale", "compile=false", "until.steps=4", "eval.every=2", "env.MY_PASSWORD=hunter2")


@pytest.fixture(scope="module")
def exported(run: RunDir) -> Exported:
    loaded = load_model(run.path, device="cpu")
    return export(loaded, default_folder(loaded), require_proof=True)


def sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def test_transformers_loads_what_a_run_exports_and_the_record_proves_it(run: RunDir, exported: Exported) -> None:
    loaded, folder = load_model(run.path, device="cpu"), exported.folder
    assert folder == run.path / "export" / "step-4"
    assert {path.name for path in folder.iterdir()} == FILES | {"model.safetensors"}
    assert not list(folder.parent.glob(".*"))

    model = AutoModelForCausalLM.from_pretrained(folder)
    held = model.state_dict()
    assert all(torch.equal(held[name], t) for name, t in SPEC.to_hf(loaded.model.state_dict()).items())
    rows = torch.randint(loaded.shape.vocab, (3, loaded.shape.context), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        assert torch.allclose(model(rows).logits, loaded.model(rows), rtol=1e-5, atol=1e-5)
    assert (model.config.vocab_size, model.config.n_positions) == (loaded.shape.vocab, 32)

    ours = loaded.read_tokenizer()
    theirs = AutoTokenizer.from_pretrained(folder)
    text = "the stoker feeds a boiler.\n\tÆ 🔥"
    assert theirs(text)["input_ids"] == ours.tokenizer.encode(text).ids
    assert theirs.decode(theirs(text)["input_ids"]) == text
    assert (theirs.eos_token_id, theirs.model_max_length) == (ours.end_id, 32)
    assert model.generation_config.eos_token_id == ours.end_id

    record = json.loads((folder / "stoker.json").read_text())
    assert record == exported.record
    assert (record["verdict"], record["problems"], record["dtype"]) == ("proven", [], "fp32")
    assert (record["run"], record["step"], record["stoker"]) == ("tale", 4, __version__)
    assert record["logits"]["largest_difference"] < 1e-5
    assert record["greedy"] == {"tokens": 31, "equal": True}
    assert record["tokenizer"] == {"texts": 9, "unchanged": 9, "equal": True}
    assert record["versions"].keys() == {"python", "torch", "transformers", "tokenizers", "safetensors"}
    assert {name: facts["sha256"] for name, facts in record["files"].items()} == {
        path.name: sha256(path) for path in folder.iterdir() if path.name != "stoker.json"
    }


def test_the_card_has_the_numbers_and_nothing_private(run: RunDir, exported: Exported) -> None:
    text = (exported.folder / "README.md").read_text()
    last = run.metrics()[-1]
    assert "# tale" in text
    assert f"made with Stoker {__version__}" in text
    assert "| steps | 4, each of 4 × 32 tokens |" in text
    assert f"| held-out loss | {last['val_loss']:.4f} |" in text
    assert "| training text | 4 documents, " in text
    everything = "".join(path.read_text() for path in exported.folder.iterdir() if path.suffix != ".safetensors")
    for private in ("hunter2", "MY_PASSWORD", str(run.path.parent), run.data().shards):
        assert private not in everything


@pytest.mark.parametrize(("dtype", "limit"), [("bf16", 20_000), pytest.param("fp16", 10**9, marks=pytest.mark.soak)])
def test_a_smaller_dtype_is_the_rounded_model_and_is_checked_as_strictly(
    run: RunDir, tmp_path: Path, dtype: Precision, limit: int
) -> None:
    loaded = load_model(run.path, device="cpu")
    exported = export(loaded, tmp_path / "small", dtype=dtype, shard_bytes=limit, require_proof=True)
    files = sorted(exported.folder.glob("*.safetensors"))
    assert (len(files) > 1, (exported.folder / "model.safetensors.index.json").exists()) == (limit < 10**6,) * 2
    held = {name: tensor for file in files for name, tensor in load_file(file).items()}
    wanted = SPEC.to_hf(loaded.model.state_dict())
    assert held.keys() == wanted.keys()
    assert all(torch.equal(held[name], tensor.to(DTYPES[dtype])) for name, tensor in wanted.items())
    assert AutoModelForCausalLM.from_pretrained(exported.folder).dtype == DTYPES[dtype]
    assert exported.record["tensors"] == len(wanted)


def test_a_folder_that_is_not_empty_is_not_touched(run: RunDir, tmp_path: Path) -> None:
    loaded = load_model(run.path, device="cpu")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "letter.txt").write_text("dear")
    with pytest.raises(UserError, match="full is not empty"):
        export(loaded, tmp_path / "full")
    with pytest.raises(UserError, match="is a file"):
        export(loaded, tmp_path / "full" / "letter.txt")
    with pytest.raises(UserError, match="cannot write in"):
        export(loaded, tmp_path / "full" / "letter.txt" / "deeper")
    assert [path.name for path in (tmp_path / "full").iterdir()] == ["letter.txt"]


def test_an_export_that_fails_leaves_nothing(run: RunDir, tmp_path: Path) -> None:
    without = replace(load_model(run.path, device="cpu"), tokenizer=None)
    with pytest.raises(UserError, match="has no tokenizer"):
        export(without, tmp_path / "out" / "here")
    assert list((tmp_path / "out").iterdir()) == []


def test_a_model_of_transformers_is_imported_and_exported_bit_for_bit(tokens: Path, tmp_path: Path) -> None:
    torch.manual_seed(3)
    odd = GPT2Config(n_layer=2, n_head=3, n_embd=60, n_positions=33, vocab_size=307, bos_token_id=0, eos_token_id=0)
    theirs = GPT2LMHeadModel(odd)
    theirs.save_pretrained(tmp_path / "theirs", max_shard_size="40KB")
    shutil.copy(tokens / "tokenizer" / "tokenizer.json", tmp_path / "theirs")
    run = import_model(tmp_path / "theirs", name="mine", runs=tmp_path / "runs")
    assert [saved.step for saved in run.saved()] == [0]
    assert run.exit().state == "done"
    again = export(load_model(run.path, device="cpu"), tmp_path / "ours")
    assert again.verdict == "proven"
    back = AutoModelForCausalLM.from_pretrained(again.folder)
    assert back.lm_head.weight is back.transformer.wte.weight
    for name, tensor in theirs.state_dict().items():
        assert torch.equal(back.state_dict()[name], tensor), name


def test_exporting_importing_and_exporting_again_gives_the_same_file(
    run: RunDir, exported: Exported, tmp_path: Path
) -> None:
    first = exported.folder
    imported = import_model(first, name="again", runs=tmp_path / "runs")
    assert imported.spec().model == run.spec().model
    second = export(load_model(imported.path, device="cpu"), tmp_path / "second").folder
    for name in ("model.safetensors", "tokenizer.json", "config.json"):
        assert sha256(first / name) == sha256(second / name)
    assert "| steps |" not in (second / "README.md").read_text()


def test_a_failed_import_leaves_no_run(run: RunDir, exported: Exported, tmp_path: Path) -> None:
    runs, good = tmp_path / "runs", exported.folder
    with pytest.raises(UserError, match=r"'a b' cannot be a run's name\. Call it something like a-b"):
        import_model(good, name="a b", runs=runs)
    with pytest.raises(UserError, match="belongs to run 'tale' already"):
        import_model(run.path, name="other", runs=runs)
    import_model(good, name="good", runs=runs)
    with pytest.raises(UserError, match="there is a run 'good'"):
        import_model(good, name="good", runs=runs)
    shutil.copytree(good, tmp_path / "bare")
    for file in (tmp_path / "bare").glob("*token*"):
        file.unlink()
    with pytest.raises(UserError, match="has no tokenizer"):
        import_model(tmp_path / "bare", name="bare", runs=runs)
    GPT2LMHeadModel(GPT2Config(n_layer=1, n_head=1, n_embd=8, n_positions=8, vocab_size=50)).save_pretrained(
        tmp_path / "bare"
    )
    shutil.copy(good / "tokenizer.json", tmp_path / "bare")
    with pytest.raises(UserError, match="has 300 tokens, and the model an embedding of 50"):
        import_model(tmp_path / "bare", name="bare", runs=runs)
    assert [path.name for path in runs.iterdir()] == ["good"]
