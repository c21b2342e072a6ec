"""tokenizer.model files, with the sentencepiece library as the judge."""

import io
import json
import random
from contextlib import suppress
from functools import cache
from pathlib import Path

import pytest
import sentencepiece
from tokenizers import Tokenizer, models, processors

from stoker.data import sentencepiece as ours
from stoker.data.prepare import prepare
from stoker.data.tokenizer import continuing, load, load_folder, save, to_train_with
from stoker.spec.data import Data
from stoker.spec.errors import UserError

LLAMA = {"model_type": "bpe", "byte_fallback": True, "normalization_rule_name": "identity", "split_digits": True}
LLAMA |= {"remove_extra_whitespaces": False, "allow_whitespace_only_pieces": True}
KINDS = {
    "llama": LLAMA,
    "llama without a first space": LLAMA | {"add_dummy_prefix": False},
    "bpe with rules": {"model_type": "bpe"},
    "unigram": {"model_type": "unigram"},
    "unigram of bytes": {"model_type": "unigram", "byte_fallback": True, "normalization_rule_name": "identity"},
}
WORDS = ["the", "stoker", "banana", "ananas", "a", "naïve", "x=1;", "漢字", "==", "    ", "\t", "1999", "fiﬁ", "--"]
SYLLABLES = ["an", "na", "ba", "sto", "ker", "fi", "re", "ing", "o", "é", "Qu", "s"]
HARD = ["", " ", "  ", " lead", "trail ", "a  b", "aaaaaaa", "====-----", "Zoë's 🙂\n\n\r\n", "\0"]
PIECES = ["▁x▁▁y", "<0x41>", "<unk>"]


def texts(seed: int, number: int) -> list[str]:
    draw = random.Random(seed)
    return [" ".join(_word(draw) for _ in range(draw.randrange(1, 12))) for _ in range(number)]


def _word(draw: random.Random) -> str:
    return draw.choice(WORDS) if draw.random() < 0.3 else "".join(draw.choices(SYLLABLES, k=draw.randrange(1, 5)))


@cache
def trained(kind: str) -> bytes:
    out = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(texts(0, 1500)),
        model_writer=out,
        vocab_size=400 if "byte_fallback" in KINDS[kind] else 150,
        hard_vocab_limit=False,
        minloglevel=2,
        num_threads=1,
        **KINDS[kind],
    )
    return out.getvalue()


def llama_folder(folder: Path, **config: object) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "tokenizer.model").write_bytes(trained("llama"))
    if config:
        (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return folder


@pytest.mark.parametrize("kind", KINDS)
def test_ids_and_text_are_those_of_sentencepiece(kind: str) -> None:
    reference = sentencepiece.SentencePieceProcessor(model_proto=trained(kind))
    tokenizer = ours.read(trained(kind))
    assert tokenizer.get_vocab_size() == reference.vocab_size()
    for id in range(reference.vocab_size()):
        assert tokenizer.id_to_token(id) == reference.id_to_piece(id)
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    letters = random.Random(seed)
    noise = ["".join(letters.choices("abn s\t\n=-é漢🙂<0▁ﬁ", k=30)) for _ in range(500)]
    exact = [*noise, *PIECES] if kind.startswith("llama") else []
    for text in [*texts(1, 500), *HARD, *exact, "\n".join(texts(2, 200))]:
        ids = reference.encode(text)
        assert tokenizer.encode(text, add_special_tokens=False).ids == ids, text
        assert tokenizer.decode(ids) == reference.decode(ids), text


def test_a_folder_with_the_model_alone_is_a_tokenizer_that_ends_documents(tmp_path: Path) -> None:
    loaded = load(str(llama_folder(tmp_path)))
    assert (loaded.end, loaded.end_id, loaded.vocab, loaded.begin) == ("</s>", 2, 400, None)
    save(loaded, tmp_path / "saved")
    assert load_folder(tmp_path / "saved").tokenizer.encode("a fire").ids == loaded.tokenizer.encode("a fire").ids


def test_transformers_reads_the_saved_tokenizer(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    loaded = load(str(llama_folder(tmp_path, bos_token="<s>", eos_token="</s>", add_bos_token=True)))
    for kept in (loaded, to_train_with(loaded)):
        save(kept, tmp_path / "saved")
        reference = transformers.AutoTokenizer.from_pretrained(tmp_path / "saved")
        for text in [*texts(3, 20), *HARD]:
            assert reference(text)["input_ids"] == kept.tokenizer.encode(text).ids
        assert reference.eos_token_id == 2


def test_tokenizer_json_wins_where_both_are_there(tmp_path: Path) -> None:
    Tokenizer(models.WordLevel({"a": 0, "</s>": 1}, "a")).save(str(llama_folder(tmp_path) / "tokenizer.json"))
    assert load(str(tmp_path)).vocab == 2


@pytest.mark.parametrize(
    ("config", "begin"),
    [
        ({}, None),
        ({"bos_token": "<s>"}, None),
        ({"bos_token": "<s>", "add_bos_token": False}, None),
        ({"bos_token": "<s>", "add_bos_token": True}, "<s>"),
        ({"bos_token": {"content": "<s>"}, "add_bos_token": True}, "<s>"),
        ({"bos_token": "<none>", "add_bos_token": True}, None),
    ],
)
def test_the_begin_token_comes_from_tokenizer_config(
    tmp_path: Path, config: dict[str, object], begin: str | None
) -> None:
    loaded = load(str(llama_folder(tmp_path, **config)))
    assert (loaded.begin, loaded.begin_id) == (begin, 1 if begin else None)
    assert loaded.tokenizer.encode("a").ids[0] == 1 or not begin


def test_the_begin_token_is_found_where_only_tokenizer_json_puts_it(tmp_path: Path) -> None:
    """As in Llama 3."""
    tokenizer = Tokenizer(models.WordLevel({"a": 0, "<b>": 1, "<|end_of_text|>": 2}, "a"))
    tokenizer.post_processor = processors.TemplateProcessing(single="<b> $A", special_tokens=[("<b>", 1)])
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "tokenizer_config.json").write_text('{"bos_token": "<b>", "eos_token": "<|end_of_text|>"}')
    loaded = load(str(tmp_path))
    assert (loaded.begin, loaded.end) == ("<b>", "<|end_of_text|>")
    assert to_train_with(loaded).tokenizer.encode("a").ids == [0]
    save(loaded, tmp_path / "again")
    assert load_folder(tmp_path / "again").begin == "<b>"


def test_documents_have_an_end_and_no_beginning_and_a_long_one_gets_no_space_in_its_middle(tmp_path: Path) -> None:
    folder = llama_folder(tmp_path / "t", bos_token="<s>", add_bos_token=True)
    long, short = "\n".join(texts(4, 6000)), "a fire"
    assert len(long) > 2**17
    for number, text in enumerate((long, short)):
        (tmp_path / f"{number}.jsonl").write_text(json.dumps({"text": text}) + "\n")
    data = Data(path=[str(tmp_path / "0.jsonl"), str(tmp_path / "1.jsonl")], tokenizer=str(folder), validation=0.0)
    tokens = prepare(data, tmp_path / "set")
    reference = sentencepiece.SentencePieceProcessor(model_proto=trained("llama"))
    expected = [*reference.encode(long), 2, *reference.encode(short), 2]
    ids = [id for _, _, part in tokens.train.stretches(0, tokens.train.tokens) for id in part.tolist()]
    assert ids == expected
    assert load_folder(tokens.tokenizer).begin is None


def test_only_a_tokenizer_that_adds_a_space_continues_differently() -> None:
    assert continuing(ours.read(trained("llama without a first space"))) is None
    assert continuing(ours.read(trained("bpe with rules"))) is None, "what it trims it puts back"
    within = continuing(ours.read(trained("llama")))
    assert within is not None
    assert within.encode("fire").tokens[0] != ours.read(trained("llama")).encode("fire").tokens[0]


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"IQ== 0\nIg== 1\n", "is a list of tiktoken's"),
        (b"", "it is not a SentencePiece model"),
        (b"hello, world", "cannot be read"),
        (trained("llama")[:5000], "cannot be read"),
    ],
)
def test_a_file_that_is_no_model_is_refused_in_one_line(tmp_path: Path, data: bytes, message: str) -> None:
    (tmp_path / "tokenizer.model").write_bytes(data)
    with pytest.raises(UserError) as caught:
        load(str(tmp_path))
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)
    assert caught.value.remedy


def test_no_damage_to_a_file_does_more_than_be_refused_or_read(tmp_path: Path) -> None:
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    draw, model = random.Random(seed), trained("llama")
    for _ in range(100):
        damaged = bytearray(model)
        for _ in range(draw.randrange(1, 4)):
            damaged[draw.randrange(len(damaged))] = draw.randrange(256)
        (tmp_path / "tokenizer.model").write_bytes(damaged[: draw.choice([len(damaged), draw.randrange(len(damaged))])])
        with suppress(UserError):
            load(str(tmp_path))
