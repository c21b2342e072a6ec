import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from tokenizers import Tokenizer, models

from stoker.data.tokenizer import LoadedTokenizer, load, load_folder, save, train
from stoker.spec.errors import UserError

TEXTS = [
    "the stoker feeds the fire, and the fire feeds the boiler\n" * 50,
    "def stoke(fire):\n    return fire + 1\n" * 50,
]
HARD = "Zoë's 漢字 <|endoftext|> don't\r\n\t  x=1_000;\n\n\n\0🙂"


def trained(size: int = 280) -> LoadedTokenizer:
    return train(size, iter(TEXTS))


def test_a_trained_tokenizer_has_the_size_asked_for_and_loses_no_byte() -> None:
    ours = trained()
    assert ours.vocab == 280
    assert ours.tokenizer.token_to_id(ours.end) == ours.end_id
    ids = ours.tokenizer.encode(HARD, add_special_tokens=False).ids
    assert ours.tokenizer.decode(ids, skip_special_tokens=False) == HARD


def test_training_gives_the_same_tokenizer_each_time() -> None:
    assert trained().sha256 == trained().sha256


def test_a_saved_tokenizer_loads_here_and_in_transformers(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    ours = trained()
    save(ours, tmp_path)
    loaded = load(str(tmp_path))
    reference = transformers.AutoTokenizer.from_pretrained(tmp_path)
    ids = ours.tokenizer.encode(HARD).ids
    assert loaded.tokenizer.encode(HARD).ids == ids
    assert reference(HARD)["input_ids"] == ids
    assert (loaded.end, reference.eos_token_id) == (ours.end, ours.end_id)


def test_vocab_and_merges_are_gpt2s_tokenizer(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    ours = trained()
    ours.tokenizer.model.save(str(tmp_path))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["merges.txt", "vocab.json"]
    reference = transformers.GPT2Tokenizer.from_pretrained(tmp_path)
    loaded = load(str(tmp_path))
    assert loaded.tokenizer.encode(HARD).ids == reference(HARD)["input_ids"] == ours.tokenizer.encode(HARD).ids


def test_truncation_and_padding_left_in_a_tokenizer_do_not_cut_text(tmp_path: Path) -> None:
    ours = trained()
    ours.tokenizer.enable_truncation(4)
    ours.tokenizer.enable_padding(length=9)
    save(ours, tmp_path)
    assert len(load(str(tmp_path)).tokenizer.encode(HARD).ids) > 20


@pytest.mark.parametrize(
    ("vocab", "configs", "end"),
    [
        (["a", "</s>", "<|endoftext|>"], {}, "<|endoftext|>"),
        (["a", "</s>"], {}, "</s>"),
        (["a", "<|end_of_text|>"], {}, "<|end_of_text|>"),
        (["a", "<eos>"], {"tokenizer_config.json": {"eos_token": "<eos>"}}, "<eos>"),
        (["a", "<eos>"], {"tokenizer_config.json": {"eos_token": {"content": "<eos>"}}}, "<eos>"),
        (["a", "<eos>"], {"config.json": {"eos_token_id": 1}}, "<eos>"),
    ],
)
def test_the_end_token_is_found(tmp_path: Path, vocab: list[str], configs: dict[str, object], end: str) -> None:
    Tokenizer(models.WordLevel({token: i for i, token in enumerate(vocab)}, "a")).save(str(tmp_path / "tokenizer.json"))
    for name, config in configs.items():
        (tmp_path / name).write_text(json.dumps(config))
    assert load(str(tmp_path)).end == end


def test_a_tokenizer_without_an_end_token_is_refused(tmp_path: Path) -> None:
    Tokenizer(models.WordLevel({"a": 0}, "a")).save(str(tmp_path / "tokenizer.json"))
    with pytest.raises(UserError, match="no token that ends a document") as error:
        load(str(tmp_path))
    assert "eos_token" in error.value.remedy


def test_a_folder_without_a_tokenizer_or_with_a_damaged_one_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"has no tokenizer\.json, no tokenizer\.model, and not both vocab"):
        load(str(tmp_path))
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(UserError, match="cannot be read"):
        load(str(tmp_path))
    with pytest.raises(UserError, match="does not exist"):
        load("./no/such/folder")


def test_an_unreachable_hub_is_reported_at_once(tmp_path: Path) -> None:
    environment = os.environ | {"HF_ENDPOINT": "http://127.0.0.1:9", "HF_HOME": str(tmp_path)}
    for name in [name for name in environment if name.lower().endswith("_proxy")]:
        del environment[name]
    script = "from stoker.data.tokenizer import load\nload('gpt2')"
    done = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True, timeout=60)
    assert "'gpt2' is not a folder here, and the hub (http://127.0.0.1:9) cannot be reached" in done.stderr
    assert "Retrying" not in done.stderr


@pytest.mark.parametrize("pairs", [False, True])
@pytest.mark.parametrize("word", ["a" * 1_000_000, "-" * 300_000, " " * 300_000 + "x", "\t" * 300_000])
def test_a_word_without_end_does_not_stop_the_training(word: str, pairs: bool) -> None:
    trained = train(300, iter([f"It was a day. {word} The sea was calm."]), pairs=pairs)
    assert trained.tokenizer.decode(trained.tokenizer.encode("The sea").ids).lower() == "the sea"


@pytest.mark.parametrize("name", ["-1", "--x", "a..b", "x" * 97])
def test_a_name_that_the_hub_cannot_have_is_refused(name: str) -> None:
    with pytest.raises(UserError, match="is neither a folder nor a name on the hub"):
        load(name)


def test_a_tokenizer_with_absurd_numbers_is_refused(tmp_path: Path) -> None:
    vocabulary = {"a": 4_294_967_290, "<|endoftext|>": 1}
    model = {"type": "WordLevel", "vocab": vocabulary, "unk_token": "a"}
    (tmp_path / "tokenizer.json").write_text(json.dumps({"version": "1.0", "model": model, "added_tokens": []}))
    with pytest.raises(UserError, match="has a token with id 4294967290"):
        load_folder(tmp_path)
    with open(tmp_path / "tokenizer.json", "wb") as file:
        file.truncate(1 << 40)
    with pytest.raises(UserError, match="is larger than 256 MiB"):
        load_folder(tmp_path)
    (tmp_path / "tokenizer.json").unlink()
    os.mkfifo(tmp_path / "tokenizer.json")
    with pytest.raises(UserError, match=r"has no tokenizer\.json"):
        load_folder(tmp_path)
