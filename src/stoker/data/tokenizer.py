"""Tokenizers: trained on the data, read from a folder, or fetched from the Hugging Face hub. Nothing in them is run."""

import hashlib
import json
import re
import socket
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from urllib.request import getproxies

from huggingface_hub import constants, hf_hub_download
from huggingface_hub.errors import EntryNotFoundError, HFValidationError
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers

from stoker.data import sentencepiece, wordpiece
from stoker.data.wordpiece import SEPARATOR, SPECIALS, VOCABULARY_FILE
from stoker.spec.bounded import read_json
from stoker.spec.data import TrainTokenizer
from stoker.spec.errors import UserError

LARGEST_FILE = 256 << 20  # bytes; that of 256,000 tokens has 33 MiB
MOST_TOKENS = 1 << 24  # rows that an embedding would need
LONG_WORD = re.compile(r"\S{1000}|\s{1000}")
BLOCK = 500  # characters: half of that
END = "<|endoftext|>"
END_TOKENS = (END, "</s>", "<|end_of_text|>")
TOKENIZER_FILE = "tokenizer.json"
PAIR = ("vocab.json", "merges.txt")
MODEL_FILE = "tokenizer.model"
CONFIGS = ("tokenizer_config.json", "config.json")
KINDS = ((TOKENIZER_FILE,), PAIR, (MODEL_FILE,), (VOCABULARY_FILE,))  # of files, each a tokenizer by itself
FORMS = "Give a folder with tokenizer.json, tokenizer.model, vocab.txt, or with vocab.json and merges.txt, or let one be trained: data.tokenizer='{train: 8000}'"  # noqa: E501


@dataclass(frozen=True, kw_only=True, slots=True)
class LoadedTokenizer:
    tokenizer: Tokenizer
    end: str
    """The token that ends a document."""
    sha256: str
    """Of the files it was read from."""
    begin: str | None = None
    """The token that every text begins with for a model that was taught so: Llama's. Ours are not: a run that we train
    joins documents by the end token, and nothing else comes between them."""

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
        """Rows an embedding needs: ids may have holes."""
        return 1 + max(self.tokenizer.get_vocab(with_added_tokens=True).values())


def load(name: str) -> LoadedTokenizer:
    """`name` is a folder, or a name on the hub."""
    folder = Path(name).expanduser()
    if folder.is_dir():
        return load_folder(folder)
    if name.startswith((".", "/", "~")) or not re.fullmatch(r"[\w.-]+(/[\w.-]+)?", name):
        raise UserError(f"the tokenizer folder {name} does not exist", remedy=FORMS)
    return _load_files(name, _fetch(name))


def has_tokenizer(folder: Path) -> bool:
    return any(all((folder / name).is_file() for name in names) for names in KINDS)


def load_folder(folder: Path) -> LoadedTokenizer:
    names = (TOKENIZER_FILE, *PAIR, MODEL_FILE, VOCABULARY_FILE, *CONFIGS)
    return _load_files(str(folder), {name: folder / name for name in names if (folder / name).is_file()})


def train(size: int, texts: Iterator[str], *, pairs: bool = False) -> LoadedTokenizer:
    """Byte-level BPE with GPT-2's way of splitting words, or WordPiece for pairs of sentences."""
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
    """The text, cut inside words that no vocabulary could hold: the time to train grows with the square of a word."""
    start = 0
    for match in LONG_WORD.finditer(text) if _may_have_long_words(text) else ():
        yield text[start : match.end()]
        start = match.end()
    yield text[start:]


def _may_have_long_words(text: str) -> bool:
    """A quick look, some forty times as fast: a long word fills one of these blocks."""
    for start in range(0, len(text) - BLOCK + 1, BLOCK):
        stop = start + BLOCK
        if text.find(" ", start, stop) < 0 and text.find("\n", start, stop) < 0:
            return True
        if text[start : start + 1].isspace() and text[start:stop].isspace():
            return True
    return False


def _trained(tokenizer: Tokenizer, end: str) -> LoadedTokenizer:
    return LoadedTokenizer(tokenizer=tokenizer, end=end, sha256=hashlib.sha256(tokenizer.to_str().encode()).hexdigest())


def to_train_with(loaded: LoadedTokenizer) -> LoadedTokenizer:
    """The same without the token that texts begin with: the model will see none."""
    if loaded.begin is None:
        return loaded
    bare = Tokenizer.from_str(loaded.tokenizer.to_str())
    bare.post_processor = processors.TemplateProcessing(single="$A", pair="$A $B:1")
    return replace(loaded, tokenizer=bare, begin=None)


def going_on(tokenizer: Tokenizer) -> Tokenizer | None:
    """The same for text that goes on in the middle of a document: no space is put before it. None where none is."""
    whole = json.loads(tokenizer.to_str())
    bare = whole | {part: _without_prefix(whole[part]) for part in ("normalizer", "pre_tokenizer")}
    return None if bare == whole else Tokenizer.from_str(json.dumps(bare))


def save(loaded: LoadedTokenizer, folder: Path) -> None:
    """Leave a folder that `load` and transformers' AutoTokenizer read. tokenizer.json comes last."""
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
    """The tokenizer to train with, saved in a folder; one that an interrupted prepare has left there is taken."""
    if not (home / TOKENIZER_FILE).is_file():
        if isinstance(wanted, TrainTokenizer):
            wanted = train(wanted.train, texts, pairs=pairs)
        save(to_train_with(wanted), home)
    return load_folder(home)


def special_tokens(loaded: LoadedTokenizer) -> dict[str, str]:
    """By the names that transformers has for them: BERT's, or the one that ends a document."""
    if loaded.end != SEPARATOR:
        return {"eos_token": loaded.end}
    known = [token for token in SPECIALS if loaded.tokenizer.token_to_id(token) is not None]
    return {f"{token.strip('[]').lower()}_token": token for token in known}


def _load_files(name: str, files: dict[str, Path]) -> LoadedTokenizer:
    for file in files.values():
        if file.stat().st_size > LARGEST_FILE:
            raise UserError(f"{file} is larger than {LARGEST_FILE >> 20} MiB, and no tokenizer is", remedy=FORMS)
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
            raise UserError(
                f"{name} has no {TOKENIZER_FILE}, no {MODEL_FILE}, and not both {' and '.join(PAIR)}", remedy=FORMS
            )
        tokenizer.no_truncation()
        tokenizer.no_padding()
        end, begin = _end_token(name, tokenizer, files), _begin_token(tokenizer, files)
    except UserError:
        raise
    except BaseException as e:  # the tokenizers library raises plain Exception, or panics, for any fault in the file
        if not isinstance(e, Exception) and type(e).__name__ != "PanicException":
            raise
        raise UserError(f"the tokenizer in {name} cannot be read: {e}", remedy=FORMS) from e
    largest = max(tokenizer.get_vocab(with_added_tokens=True).values(), default=0)
    if largest >= MOST_TOKENS:
        raise UserError(f"the tokenizer in {name} has a token of the number {largest}", remedy=FORMS)
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
        raise UserError(
            f"{file} is a list of tiktoken's, as Llama 3 has it, and no SentencePiece model",
            remedy=f"Take the {TOKENIZER_FILE} of the same model",
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
        if found := _configured_end(tokenizer, _said(files, config)):
            return found
    if tokenizer.token_to_id(SEPARATOR) is not None:
        return SEPARATOR
    raise UserError(
        f"the tokenizer {name} has no token that ends a document",
        remedy=f'Name one of its tokens in {CONFIGS[0]} beside it: {{"eos_token": "…"}}',
    )


def _begin_token(tokenizer: Tokenizer, files: dict[str, Path]) -> str | None:
    """Named in tokenizer_config.json, and put before a text by what that says, or by tokenizer.json."""
    config = _said(files, CONFIGS[0])
    token = _content(config.get("bos_token"))
    id = tokenizer.token_to_id(token) if isinstance(token, str) else None
    if id is None:
        return None
    there = tokenizer.encode("x").ids[:1] == [id]
    if not config.get("add_bos_token", there):
        return None
    if not there:
        tokenizer.post_processor = processors.TemplateProcessing(
            single=f"{token} $A", pair=f"{token} $A {token}:1 $B:1", special_tokens=[(token, id)]
        )
    return str(token)


def _said(files: dict[str, Path], name: str) -> dict[str, Any]:
    """What a file beside the tokenizer says; one that is damaged says nothing."""
    try:
        said = read_json(files[name]) if name in files else {}
    except (OSError, ValueError):
        return {}
    return said if isinstance(said, dict) else {}


def _content(token: Any) -> Any:
    return token.get("content") if isinstance(token, dict) else token


def _without_prefix(part: Any) -> Any:
    """Of a tokenizer's JSON. What trims the text's beginning takes a space that was there, and must put it back."""
    if not isinstance(part, dict):
        return part
    for steps in ("normalizers", "pretokenizers"):
        if steps in part and not any(step.get("pattern") == {"Regex": sentencepiece.TRIMMED} for step in part[steps]):
            part = part | {steps: [_without_prefix(step) for step in part[steps] if step["type"] != "Prepend"]}
    bare = {"Metaspace": {"prepend_scheme": "never"}, "ByteLevel": {"add_prefix_space": False}}
    return part | bare.get(part["type"], {})


def _lowercase(files: dict[str, Path]) -> bool:
    """What the file beside a vocab.txt says; BERT's cased models say false."""
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
    except HFValidationError as e:
        raise UserError(f"'{name}' is neither a folder nor a name on the hub", remedy=FORMS) from e
    if any(all(name in files for name in names) for names in KINDS):
        return files
    if not reachable(constants.ENDPOINT):
        raise UserError(
            f"'{name}' is no folder here, and the hub ({constants.ENDPOINT}) cannot be reached", remedy=FORMS
        )
    try:
        return _download(name, local=False)
    except (OSError, ValueError) as e:
        reason = str(e).strip().splitlines()[0]
        raise UserError(f"the tokenizer '{name}' cannot be fetched from the hub: {reason}", remedy=FORMS) from e


def _download(name: str, *, local: bool) -> dict[str, Path]:
    files: dict[str, Path] = {}
    for file in (TOKENIZER_FILE, *PAIR, MODEL_FILE, VOCABULARY_FILE, *CONFIGS):
        if file in (*PAIR, MODEL_FILE, VOCABULARY_FILE) and TOKENIZER_FILE in files:
            continue
        try:
            files[file] = Path(hf_hub_download(name, file, local_files_only=local))
        except EntryNotFoundError:
            continue  # most repositories lack some of these
    return files


def reachable(endpoint: str) -> bool:
    """Asked first, because the hub's client tries five times, for half a minute, before it gives up."""
    url = urlsplit(endpoint)
    if getproxies() or url.hostname is None:
        return True
    try:
        socket.create_connection((url.hostname, url.port or (443 if url.scheme == "https" else 80)), timeout=5).close()
    except OSError:
        return False
    return True
