"""WordPiece: the same from the same text in every process, and transformers' own from a vocab.txt."""

import subprocess
import sys
from pathlib import Path

import pytest
from tokenizers import Tokenizer, models
from transformers import BertTokenizerFast

from stoker.data.tokenizer import load_folder, save, train
from stoker.data.wordpiece import SPECIALS, masking_vocabulary
from stoker.spec.errors import UserError

TEXTS = ["The stoker feeds the fire, naïve and brave.", "A boiler's fire: 日本語 feeding, fed, feeder!"] * 5
TRAIN = "import sys; from stoker.data.wordpiece import train; print(train(90, iter(sys.argv[1:])).to_str())"


def test_the_same_text_gives_the_same_vocabulary_in_every_process() -> None:
    """A hash table's order is another in each."""
    argv = [sys.executable, "-c", TRAIN, *TEXTS]
    made = [subprocess.run(argv, capture_output=True, text=True, check=True).stdout for _ in range(3)]
    assert made[0] == made[1] == made[2]


def test_a_trained_one_is_berts_and_comes_back_as_saved(tmp_path: Path) -> None:
    trained = train(90, iter(TEXTS), pairs=True)
    assert [trained.tokenizer.token_to_id(token) for token in SPECIALS] == [0, 1, 2, 3, 4]
    encoding = trained.tokenizer.encode("the Stoker [MASK]", "FED")
    assert encoding.tokens[0] == "[CLS]"
    assert encoding.tokens.count("[SEP]") == 2
    assert "[MASK]" in encoding.tokens
    assert encoding.type_ids[-1] == 1
    save(trained, tmp_path)
    loaded = load_folder(tmp_path)
    assert loaded.tokenizer.to_str() == trained.tokenizer.to_str()
    assert loaded.end == "[SEP]"
    reference = BertTokenizerFast.from_pretrained(tmp_path)
    assert (reference.mask_token_id, reference.cls_token_id, reference.pad_token_id) == (4, 2, 0)
    for text in TEXTS:
        assert reference(text)["input_ids"] == trained.tokenizer.encode(text).ids


@pytest.mark.parametrize(("config", "lower"), [(None, True), ('{"do_lower_case": false}', False)])
def test_a_vocab_txt_gives_transformers_ids(tmp_path: Path, config: str | None, lower: bool) -> None:
    vocabulary = [*SPECIALS, "the", "The", "fire", "##s", "stoker", ",", "na", "##ive"]
    (tmp_path / "vocab.txt").write_text("\n".join(vocabulary) + "\n")
    if config:
        (tmp_path / "tokenizer_config.json").write_text(config)
    ours = load_folder(tmp_path)
    reference = BertTokenizerFast(vocab={token: id for id, token in enumerate(vocabulary)}, do_lower_case=lower)
    for text in ("The fires, naïve stoker", "unknown Words", ""):
        assert ours.tokenizer.encode(text).ids == reference(text)["input_ids"]
    assert ours.tokenizer.encode("The", add_special_tokens=False).ids == [vocabulary.index("the" if lower else "The")]


@pytest.mark.parametrize("missing", ["[PAD]", "[CLS]", "[SEP]", "[MASK]"])
def test_a_tokenizer_without_mask_tokens_is_refused_by_name(missing: str) -> None:
    vocabulary = [token for token in (*SPECIALS, "a") if token != missing]
    tokenizer = Tokenizer(models.WordPiece({token: id for id, token in enumerate(vocabulary)}, unk_token="[UNK]"))
    with pytest.raises(UserError) as error:
        masking_vocabulary(tokenizer, "./folder")
    assert f"./folder has no {missing}," in str(error.value)
    assert "vocab.txt" in error.value.remedy


def test_special_tokens_and_word_continuations_are_known() -> None:
    vocabulary = masking_vocabulary(train(90, iter(TEXTS), pairs=True).tokenizer, "x")
    assert vocabulary.special.tolist() == [True] * 5 + [False] * (len(vocabulary.special) - 5)
    assert len(vocabulary.plain) == len(vocabulary.special) - 5
    assert vocabulary.inner.any()
    assert not (vocabulary.inner & vocabulary.special).any()
