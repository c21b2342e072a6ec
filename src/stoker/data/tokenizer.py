"""Tokenizers: trained on the data, read from a folder, or fetched from the Hugging Face hub. All are JSON and text."""

import hashlib
import json
import re
import socket
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from urllib.request import getproxies

from huggingface_hub import constants, hf_hub_download
from huggingface_hub.errors import EntryNotFoundError
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from stoker.spec.errors import UserError

END = "<|endoftext|>"
END_TOKENS = (END, "</s>", "<|end_of_text|>")
TOKENIZER_FILE = "tokenizer.json"
PAIR = ("vocab.json", "merges.txt")
CONFIGS = ("tokenizer_config.json", "config.json")
FORMS = "Give a folder with tokenizer.json, or with vocab.json and merges.txt, or let one be trained: data.tokenizer='{train: 8000}'"  # noqa: E501


@dataclass(frozen=True, kw_only=True, slots=True)
class LoadedTokenizer:
    tokenizer: Tokenizer
    end: str
    """The token that ends a document."""
    sha256: str
    """Of the files it was read from."""

    @property
    def end_id(self) -> int:
        id = self.tokenizer.token_to_id(self.end)
        assert id is not None
        return id

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


def load_folder(folder: Path) -> LoadedTokenizer:
    names = (TOKENIZER_FILE, *PAIR, *CONFIGS)
    return _load_files(str(folder), {name: folder / name for name in names if (folder / name).is_file()})


def train(size: int, texts: Iterator[str]) -> LoadedTokenizer:
    """Byte-level BPE with GPT-2's way of splitting words."""
    tokenizer = _byte_level(models.BPE())
    trainer = trainers.BpeTrainer(
        vocab_size=size,
        special_tokens=[END],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return LoadedTokenizer(tokenizer=tokenizer, end=END, sha256=hashlib.sha256(tokenizer.to_str().encode()).hexdigest())


def save(loaded: LoadedTokenizer, folder: Path) -> None:
    """Leave a folder that `load` and transformers' AutoTokenizer read. tokenizer.json comes last."""
    folder.mkdir(parents=True, exist_ok=True)
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": loaded.end,
        "clean_up_tokenization_spaces": False,
    }
    (folder / CONFIGS[0]).write_text(json.dumps(config, indent=2, ensure_ascii=False) + "\n")
    partial = folder / f".{TOKENIZER_FILE}"
    loaded.tokenizer.save(str(partial))
    partial.replace(folder / TOKENIZER_FILE)


def _load_files(name: str, files: dict[str, Path]) -> LoadedTokenizer:
    try:
        if TOKENIZER_FILE in files:
            used = [files[TOKENIZER_FILE]]
            tokenizer = Tokenizer.from_file(str(used[0]))
        elif all(part in files for part in PAIR):
            used = [files[part] for part in PAIR]
            tokenizer = _from_pair(*used)
        else:
            raise UserError(f"{name} has no {TOKENIZER_FILE}, and not both {' and '.join(PAIR)}", remedy=FORMS)
    except UserError:
        raise
    except Exception as e:  # the tokenizers library raises plain Exception for any fault in the file
        raise UserError(f"the tokenizer in {name} cannot be read: {e}", remedy=FORMS) from e
    tokenizer.no_truncation()
    tokenizer.no_padding()
    sha256 = hashlib.sha256(b"".join(hashlib.sha256(path.read_bytes()).digest() for path in used)).hexdigest()
    return LoadedTokenizer(tokenizer=tokenizer, end=_end_token(name, tokenizer, files), sha256=sha256)


def _from_pair(vocab: Path, merges: Path) -> Tokenizer:
    tokenizer = _byte_level(models.BPE.from_file(str(vocab), str(merges)))
    if tokenizer.token_to_id(END) is not None:
        tokenizer.add_special_tokens([END])
    return tokenizer


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
        if config in files and (found := _configured_end(tokenizer, json.loads(files[config].read_text()))):
            return found
    raise UserError(
        f"the tokenizer {name} has no token that ends a document",
        remedy=f'Name one of its tokens in {CONFIGS[0]} beside it: {{"eos_token": "…"}}',
    )


def _configured_end(tokenizer: Tokenizer, config: dict[str, Any]) -> str | None:
    token = config.get("eos_token")
    if isinstance(token, dict):
        token = token.get("content")
    if token is None and isinstance(config.get("eos_token_id"), int):
        token = tokenizer.id_to_token(config["eos_token_id"])
    return token if isinstance(token, str) and tokenizer.token_to_id(token) is not None else None


def _fetch(name: str) -> dict[str, Path]:
    """The tokenizer's files from the hub's cache on this machine, else from the hub."""
    files = _download(name, local=True)
    if TOKENIZER_FILE in files or all(part in files for part in PAIR):
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
    for file in (TOKENIZER_FILE, *PAIR, *CONFIGS):
        if file in PAIR and TOKENIZER_FILE in files:
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
