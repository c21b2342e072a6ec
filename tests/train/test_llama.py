"""A Llama in every verb: trained, evaluated, generated from, exported with proof, imported, with its tokenizer."""

import io
import json
from pathlib import Path

import pytest
import sentencepiece
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, LlamaForCausalLM

from stoker.data.tokenizer import load_folder
from stoker.inference.export import export
from stoker.inference.importing import import_model
from stoker.models.generate import Settings, generate
from stoker.models.load import load_model
from tests.inside import inside

pytestmark = pytest.mark.usefixtures("one_thread")
TINY = [
    "model.family=llama", "model.layers=2", "model.heads=4", "model.kv_heads=2", "model.width=32", "model.hidden=48",
    "model.context=32", "batch.sequences=4", "batch.length=32", "precision=fp32", "compile=false", "until.steps=4",
    "eval.every=2", "on.workers=1", "on.device=cpu",
]  # fmt: skip


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory, books: Path) -> Path:
    """A folder like that of Llama 2, without a tokenizer.json."""
    out = io.BytesIO()
    lines = [line for book in sorted(books.iterdir()) for line in book.read_text().splitlines()]
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(lines), model_writer=out, vocab_size=330, minloglevel=2, num_threads=1,
        model_type="bpe", byte_fallback=True, normalization_rule_name="identity", remove_extra_whitespaces=False,
    )  # fmt: skip
    folder = tmp_path_factory.mktemp("llama")
    (folder / "tokenizer.model").write_bytes(out.getvalue())
    config = {"tokenizer_class": "LlamaTokenizer", "bos_token": "<s>", "eos_token": "</s>", "add_bos_token": True}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return folder


def theirs(folder: Path, tokenizer: Path, **config: object) -> LlamaForCausalLM:
    torch.manual_seed(3)
    odd = {"num_hidden_layers": 2, "num_attention_heads": 6, "num_key_value_heads": 2, "hidden_size": 60}
    odd |= {"intermediate_size": 77, "max_position_embeddings": 250, "vocab_size": 331, "initializer_range": 0.2}
    model = LlamaForCausalLM(LlamaConfig(**odd, **config)).eval()
    model.save_pretrained(folder, max_shard_size="40KB")
    for file in tokenizer.iterdir():
        (folder / file.name).write_bytes(file.read_bytes())
    return model


def test_a_llama_of_transformers_is_imported_and_exported_bit_for_bit(tmp_path: Path, tokenizer: Path) -> None:
    model = theirs(tmp_path / "theirs", tokenizer, tie_word_embeddings=True)
    run = import_model(tmp_path / "theirs", name="mine", runs=tmp_path / "runs")
    again = export(load_model(run.path, device="cpu"), tmp_path / "ours", require_proof=True)
    back = AutoModelForCausalLM.from_pretrained(again.folder)
    assert all(torch.equal(back.state_dict()[name], tensor) for name, tensor in model.state_dict().items())
    assert back.lm_head.weight is back.model.embed_tokens.weight
    assert (back.config.bos_token_id, back.config.eos_token_id) == (1, 2)
    assert AutoTokenizer.from_pretrained(again.folder)("the stoker")["input_ids"][0] == 1
    assert load_folder(again.folder).begin == "<s>"


@torch.no_grad()
def test_text_starts_with_the_tokenizers_begin_token_and_equals_transformers(tmp_path: Path, tokenizer: Path) -> None:
    model = theirs(tmp_path, tokenizer)
    model.generation_config.update(eos_token_id=None, pad_token_id=0)
    loaded = load_model(tmp_path, device="cpu")
    ours = loaded.read_tokenizer()
    prompts, settings = ["the stoker feeds", "a boiler", ""], Settings(tokens=200, temperature=0, past_end=True)
    pieces = generate(loaded.model, loaded.shape, ours.tokenizer, ours.end_id, prompts, settings, begin=ours.begin_id)
    generated = {piece.row: piece.ending.ids for piece in pieces if piece.ending}
    reader = sentencepiece.SentencePieceProcessor(model_file=str(tokenizer / "tokenizer.model"))
    for row, prompt in enumerate(prompts):
        given = torch.tensor([[1, *reader.encode(prompt)]])
        written = model.generate(given, max_new_tokens=200, do_sample=False)[0, given.shape[1] :]
        assert generated[row] == written.tolist()


def test_a_run_on_own_text_is_evaluated_generated_from_and_exported_with_proof(
    worker, books: Path, tokenizer: Path
) -> None:
    run = worker("name=tale", f"data={books}", f"data.tokenizer={tokenizer}", *TINY, shaped=False)
    assert load_folder(run.tokenizer).begin is None, "its documents have only an end"
    losses = [record["val_loss"] for record in run.metrics() if "val_loss" in record]
    score = json.loads(inside("eval", str(run.path), "--json").stdout)
    assert score["loss"] == pytest.approx(losses[-1], rel=0.05)
    assert "the stoker" in inside("generate", str(run.path), "the stoker", "--tokens", "5").stdout
    inside("export", str(run.path), "--require-proof")
    folder = run.path / "export" / "step-4"
    reader = sentencepiece.SentencePieceProcessor(model_file=str(tokenizer / "tokenizer.model"))
    assert AutoTokenizer.from_pretrained(folder)("the stoker feeds")["input_ids"] == reader.encode("the stoker feeds")
    shape = AutoModelForCausalLM.from_pretrained(folder).config
    assert (shape.num_key_value_heads, shape.intermediate_size, shape.eos_token_id) == (2, 48, 2)
