"""Tokenizers: trained on the data, read from a folder, or fetched from the Hugging Face hub. They run no code."""

import hashlib
import json
import os
import re
import socket
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from urllib.request import getproxies

import huggingface_hub  # its functions are loaded when they are used, and with them an HTTP client
from huggingface_hub import constants
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers

from stoker.data import sentencepiece, wordpiece
from stoker.data.wordpiece import SEPARATOR, SPECIALS, VOCABULARY_FILE
from stoker.spec.bounded import read_json
from stoker.spec.data import TrainTokenizer
from stoker.spec.errors import UserError

MAX_FILE_BYTES = 256 << 20  # a tokenizer of 256,000 tokens has 33 MiB
MAX_TOKENS = 1 << 24  # rows of the embedding
LONG_WORD = re.compile(r"\S{1000}|\s{1000}")
BLOCK_CHARACTERS = 500  # half of the length of a long word
END = "<|endoftext|>"
END_TOKENS = (END, "</s>", "<|end_of_text|>")
TOKENIZER_FILE = "tokenizer.json"
PAIR = ("vocab.json", "merges.txt")
MODEL_FILE = "tokenizer.model"
CONFIGS = ("tokenizer_config.json", "config.json")
KINDS = ((TOKENIZER_FILE,), PAIR, (MODEL_FILE,), (VOCABULARY_FILE,))  # sets of files, each a complete tokenizer
FORMS = "Give a folder with tokenizer.json, tokenizer.model, vocab.txt, or with vocab.json and merges.txt, or train one: data.tokenizer='{train: 8000}'"  # noqa: E501


class TokenizerError(UserError):
    """A tokenizer does not exist, cannot be downloaded, or cannot be read."""


@dataclass(frozen=True, kw_only=True, slots=True)
class LoadedTokenizer:
    tokenizer: Tokenizer
    end: str
    """The token that ends a document."""
    sha256: str
    """Hash of its files."""
    begin: str | None = None
    """The token that every text starts with for models that were trained so, such as Llama. Stoker's own training
    puts the end token between documents, and nothing else."""

    @property
    def end_id(self) -> int:
        id = self.tokenizer.token_to_id(self.end)
        assert id is not None
        return id

    @property
    def begin_id(self) -> int | None:
        return None if self.begin is None else self.tokenizer.token_to_id(self.begin)

    @property
    def vocab(self) -> int:
        """Rows that an embedding needs: ids may have gaps."""
        return 1 + max(self.tokenizer.get_vocab(with_added_tokens=True).values())


def load(name: str) -> LoadedTokenizer:
    """`name` is a folder, or a name on the hub."""
    folder = Path(os.path.expanduser(name))
    if folder.is_dir():
        return load_folder(folder)
    if name.startswith((".", "/", "~")) or not re.fullmatch(r"[\w.-]+(/[\w.-]+)?", name):
        raise TokenizerError(f"the tokenizer folder {name} does not exist", remedy=FORMS)
    return _load_files(name, _fetch(name))


def has_tokenizer(folder: Path) -> bool:
    return any(all((folder / name).is_file() for name in names) for names in KINDS)


def load_folder(folder: Path) -> LoadedTokenizer:
    names = (TOKENIZER_FILE, *PAIR, MODEL_FILE, VOCABULARY_FILE, *CONFIGS)
    return _load_files(str(folder), {name: folder / name for name in names if (folder / name).is_file()})


def train(size: int, texts: Iterator[str], *, pairs: bool = False) -> LoadedTokenizer:
    """Byte-level BPE with GPT-2's word splitting, or WordPiece for sentence pairs."""
    texts = (part for text in texts for part in _short_words(text))
    if pairs:
        return _trained(wordpiece.train(size, texts), SEPARATOR)
    tokenizer = _byte_level(models.BPE())
    trainer = trainers.BpeTrainer(
        vocab_size=size,
        special_tokens=[END],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return _trained(tokenizer, END)


def _short_words(text: str) -> Iterator[str]:
    """The text, with very long words cut: training time grows with the square of a word's length."""
    start = 0
    for match in LONG_WORD.finditer(text) if _may_have_long_words(text) else ():
        yield text[start : match.end()]
        start = match.end()
    yield text[start:]


def _may_have_long_words(text: str) -> bool:
    """A quick test, about forty times as fast: a long word fills at least one block."""
    for start in range(0, len(text) - BLOCK_CHARACTERS + 1, BLOCK_CHARACTERS):
        stop = start + BLOCK_CHARACTERS
        if text.find(" ", start, stop) < 0 and text.find("\n", start, stop) < 0:
            return True
        if text[start : start + 1].isspace() and text[start:stop].isspace():
            return True
    return False


def _trained(tokenizer: Tokenizer, end: str) -> LoadedTokenizer:
    return LoadedTokenizer(tokenizer=tokenizer, end=end, sha256=hashlib.sha256(tokenizer.to_str().encode()).hexdigest())


def to_train_with(loaded: LoadedTokenizer) -> LoadedTokenizer:
    """The same tokenizer without the token that texts start with: training uses none."""
    if loaded.begin is None:
        return loaded
    bare = Tokenizer.from_str(loaded.tokenizer.to_str())
    bare.post_processor = processors.TemplateProcessing(single="$A", pair="$A $B:1")
    return replace(loaded, tokenizer=bare, begin=None)


def continuing(tokenizer: Tokenizer) -> Tokenizer | None:
    """The same tokenizer for text in the middle of a document: adds no space before it. None if it never does."""
    whole = json.loads(tokenizer.to_str())
    bare = whole | {part: _without_prefix(whole[part]) for part in ("normalizer", "pre_tokenizer")}
    return None if bare == whole else Tokenizer.from_str(json.dumps(bare))


def save(loaded: LoadedTokenizer, folder: Path) -> None:
    """Writes a folder that `load` and transformers' AutoTokenizer can read. tokenizer.json is written last."""
    folder.mkdir(parents=True, exist_ok=True)
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        **special_tokens(loaded),
        "clean_up_tokenization_spaces": False,
    } | ({"bos_token": loaded.begin, "add_bos_token": True} if loaded.begin else {})
    (folder / CONFIGS[0]).write_text(json.dumps(config, indent=2, ensure_ascii=False) + "\n")
    partial = folder / f".{TOKENIZER_FILE}"
    loaded.tokenizer.save(str(partial))
    partial.replace(folder / TOKENIZER_FILE)


def made_in(
    home: Path, wanted: LoadedTokenizer | TrainTokenizer, texts: Iterator[str], *, pairs: bool = False
) -> LoadedTokenizer:
    """The tokenizer to train with, saved in a folder; reuses the tokenizer of an interrupted prepare."""
    if not (home / TOKENIZER_FILE).is_file():
        if isinstance(wanted, TrainTokenizer):
            wanted = train(wanted.train, texts, pairs=pairs)
        save(to_train_with(wanted), home)
    return load_folder(home)


def special_tokens(loaded: LoadedTokenizer) -> dict[str, str]:
    """Special tokens by their names in transformers: BERT's, or the end token."""
    if loaded.end != SEPARATOR:
        return {"eos_token": loaded.end}
    known = [token for token in SPECIALS if loaded.tokenizer.token_to_id(token) is not None]
    return {f"{token.strip('[]').lower()}_token": token for token in known}


def _load_files(name: str, files: dict[str, Path]) -> LoadedTokenizer:
    for file in files.values():
        if file.stat().st_size > MAX_FILE_BYTES:
            raise TokenizerError(
                f"{file} is larger than {MAX_FILE_BYTES >> 20} MiB, too large for a tokenizer", remedy=FORMS
            )
    try:
        if TOKENIZER_FILE in files:
            used = [files[TOKENIZER_FILE]]
            tokenizer = Tokenizer.from_file(str(used[0]))
        elif all(part in files for part in PAIR):
            used = [files[part] for part in PAIR]
            tokenizer = _from_pair(*used)
        elif MODEL_FILE in files:
            used = [files[MODEL_FILE]]
            tokenizer = _from_model(used[0])
        elif VOCABULARY_FILE in files:
            used = [files[file] for file in (VOCABULARY_FILE, CONFIGS[0]) if file in files]
            tokenizer = wordpiece.from_vocabulary(used[0], lowercase=_lowercase(files))
        else:
            raise TokenizerError(
                f"{name} has no {TOKENIZER_FILE}, no {MODEL_FILE}, and not both {' and '.join(PAIR)}", remedy=FORMS
            )
        tokenizer.no_truncation()
        tokenizer.no_padding()
        end, begin = _end_token(name, tokenizer, files), _begin_token(tokenizer, files)
    except TokenizerError:
        raise
    except BaseException as e:  # the tokenizers library raises plain Exception, or panics, for any fault in the file
        if not isinstance(e, Exception) and type(e).__name__ != "PanicException":
            raise
        raise TokenizerError(f"the tokenizer in {name} cannot be read: {e}", remedy=FORMS) from e
    largest = max(tokenizer.get_vocab(with_added_tokens=True).values(), default=0)
    if largest >= MAX_TOKENS:
        raise TokenizerError(f"the tokenizer in {name} has a token with id {largest}", remedy=FORMS)
    sha256 = hashlib.sha256(b"".join(hashlib.sha256(path.read_bytes()).digest() for path in used)).hexdigest()
    return LoadedTokenizer(tokenizer=tokenizer, end=end, sha256=sha256, begin=begin)


def _from_pair(vocab: Path, merges: Path) -> Tokenizer:
    tokenizer = _byte_level(models.BPE.from_file(str(vocab), str(merges)))
    if tokenizer.token_to_id(END) is not None:
        tokenizer.add_special_tokens([END])
    return tokenizer


def _from_model(file: Path) -> Tokenizer:
    data = file.read_bytes()
    if re.match(rb"[A-Za-z0-9+/]+=* \d+\n", data):
        raise TokenizerError(
            f"{file} is a list of tiktoken's, as Llama 3 has it, and no SentencePiece model",
            remedy=f"Use the {TOKENIZER_FILE} of the same model",
        )
    return sentencepiece.read(data)


def _byte_level(model: models.BPE) -> Tokenizer:
    tokenizer = Tokenizer(model)
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def _end_token(name: str, tokenizer: Tokenizer, files: dict[str, Path]) -> str:
    for token in END_TOKENS:
        if tokenizer.token_to_id(token) is not None:
            return token
    for config in CONFIGS:
        if configured := _configured_end(tokenizer, _read_config(files, config)):
            return configured
    if tokenizer.token_to_id(SEPARATOR) is not None:
        return SEPARATOR
    raise TokenizerError(
        f"the tokenizer {name} has no token that ends a document",
        remedy=f'Name one of its tokens in {CONFIGS[0]} beside it: {{"eos_token": "…"}}',
    )


def _begin_token(tokenizer: Tokenizer, files: dict[str, Path]) -> str | None:
    """The token named in tokenizer_config.json, if that file or tokenizer.json adds it before a text."""
    config = _read_config(files, CONFIGS[0])
    token = _content(config.get("bos_token"))
    id = tokenizer.token_to_id(token) if isinstance(token, str) else None
    if id is None:
        return None
    added = tokenizer.encode("x").ids[:1] == [id]
    if not config.get("add_bos_token", added):
        return None
    if not added:
        tokenizer.post_processor = processors.TemplateProcessing(
            single=f"{token} $A", pair=f"{token} $A {token}:1 $B:1", special_tokens=[(token, id)]
        )
    return str(token)


def _read_config(files: dict[str, Path], name: str) -> dict[str, Any]:
    """The content of a JSON file beside the tokenizer; empty if it is missing or damaged."""
    try:
        values = read_json(files[name]) if name in files else {}
    except (OSError, ValueError):
        return {}
    return values if isinstance(values, dict) else {}


def _content(token: Any) -> Any:
    return token.get("content") if isinstance(token, dict) else token


def _without_prefix(part: Any) -> Any:
    """Changes a tokenizer's JSON: a step that strips the start of the text must keep a space."""
    if not isinstance(part, dict):
        return part
    for steps in ("normalizers", "pretokenizers"):
        if steps in part and not any(step.get("pattern") == {"Regex": sentencepiece.TRIMMED} for step in part[steps]):
            part = part | {steps: [_without_prefix(step) for step in part[steps] if step["type"] != "Prepend"]}
    bare = {"Metaspace": {"prepend_scheme": "never"}, "ByteLevel": {"add_prefix_space": False}}
    return part | bare.get(part["type"], {})


def _lowercase(files: dict[str, Path]) -> bool:
    """The setting in the file beside a vocab.txt; false for BERT's cased models."""
    config = read_json(files[CONFIGS[0]]) if CONFIGS[0] in files else {}
    return bool(config.get("do_lower_case", True))


def _configured_end(tokenizer: Tokenizer, config: dict[str, Any]) -> str | None:
    token = _content(config.get("eos_token"))
    if token is None and isinstance(config.get("eos_token_id"), int) and 0 <= config["eos_token_id"] < 2**32:
        token = tokenizer.id_to_token(config["eos_token_id"])
    return token if isinstance(token, str) and tokenizer.token_to_id(token) is not None else None


def _fetch(name: str) -> dict[str, Path]:
    """The tokenizer's files from the hub's cache on this machine, else from the hub."""
    try:
        files = _download(name, local=True)
    except huggingface_hub.errors.HFValidationError as e:
        raise TokenizerError(f"'{name}' is neither a folder nor a name on the hub", remedy=FORMS) from e
    if any(all(name in files for name in names) for names in KINDS):
        return files
    if not reachable(constants.ENDPOINT):
        raise TokenizerError(
            f"'{name}' is not a folder here, and the hub ({constants.ENDPOINT}) cannot be reached", remedy=FORMS
        )
    try:
        return _download(name, local=False)
    except (OSError, ValueError) as e:
        reason = str(e).strip().splitlines()[0]
        raise TokenizerError(f"the tokenizer '{name}' cannot be fetched from the hub: {reason}", remedy=FORMS) from e


def _download(name: str, *, local: bool) -> dict[str, Path]:
    files: dict[str, Path] = {}
    for file in (TOKENIZER_FILE, *PAIR, MODEL_FILE, VOCABULARY_FILE, *CONFIGS):
        if file in (*PAIR, MODEL_FILE, VOCABULARY_FILE) and TOKENIZER_FILE in files:
            continue
        try:
            files[file] = Path(huggingface_hub.hf_hub_download(name, file, local_files_only=local))
        except huggingface_hub.errors.EntryNotFoundError:
            continue  # most repositories have only some of these
    return files


def reachable(endpoint: str) -> bool:
    """Checked first: the hub's client tries five times, for half a minute, before it gives up."""
    url = urlsplit(endpoint)
    if getproxies() or url.hostname is None:
        return True
    try:
        socket.create_connection((url.hostname, url.port or (443 if url.scheme == "https" else 80)), timeout=5).close()
    except OSError:
        return False
    return True
