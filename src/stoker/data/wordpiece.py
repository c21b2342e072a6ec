"""WordPiece, as BERT has it: trained on the data, or read from a vocab.txt; and what masking must know of words."""

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

from stoker.spec.errors import UserError

PAD, UNKNOWN, CLASS, SEPARATOR, MASK = SPECIALS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
NEEDED = (PAD, CLASS, SEPARATOR, MASK)
INNER = "##"
VOCABULARY_FILE = "vocab.txt"
LARGEST_ALPHABET = 1000


@dataclass(frozen=True, kw_only=True, slots=True)
class Words:
    """A vocabulary as masking sees it."""

    begin: int
    separator: int
    mask: int
    special: NDArray[np.bool_]
    """Of each id: it stands for no text, and is never masked."""
    inner: NDArray[np.bool_]
    """Of each id: it goes on with the word before it."""
    plain: NDArray[np.int64]
    """Ids of all that are not special."""


def words_of(tokenizer: Tokenizer, where: object) -> Words:
    """`where` is the place that the tokenizer came from, for the message when it lacks what masking needs."""
    lacking = [token for token in NEEDED if tokenizer.token_to_id(token) is None]
    if lacking:
        raise UserError(
            f"the tokenizer {where} has no {', '.join(lacking)}, and a masked model needs {', '.join(NEEDED)}",
            remedy="Give one of BERT's, by tokenizer.json or vocab.txt, or train one: data.tokenizer='{train: 8000}'",
        )
    vocabulary = tokenizer.get_vocab(with_added_tokens=True)
    special, inner = np.zeros((2, 1 + max(vocabulary.values())), bool)
    known = np.zeros(len(special), bool)
    known[list(vocabulary.values())] = True
    inner[[id for token, id in vocabulary.items() if token.startswith(INNER)]] = True
    added = [id for id, token in tokenizer.get_added_tokens_decoder().items() if token.special]
    special[[*added, *(vocabulary[token] for token in SPECIALS if token in vocabulary)]] = True
    return Words(
        begin=vocabulary[CLASS],
        separator=vocabulary[SEPARATOR],
        mask=vocabulary[MASK],
        special=special,
        inner=inner,
        plain=np.flatnonzero(known & ~special),
    )


def train(size: int, texts: Iterator[str]) -> Tokenizer:
    """Lower case, without accents, words cut at blanks and punctuation: the normaliser of BERT's uncased models."""
    held = list(texts)
    normaliser = normalizers.BertNormalizer(lowercase=True)
    letters: Counter[str] = Counter()
    inside: set[str] = set()
    for text in held:
        normal = normaliser.normalize_str(text)
        letters.update(normal)
        inside.update(re.findall(r"(?<=\w)\w", normal))
    frequent = sorted((letter for letter in letters if not letter.isspace()), key=lambda x: (-letters[x], x))
    alphabet = sorted(frequent[:LARGEST_ALPHABET])
    # The trainer numbers what goes on inside a word in the order of a hash table, another in each process, and breaks
    # ties by these numbers. Named beforehand they are the same each time.
    inner = [INNER + letter for letter in alphabet if letter in inside]
    trainer = trainers.WordPieceTrainer(
        vocab_size=size,
        special_tokens=[*SPECIALS, *inner],
        initial_alphabet=alphabet,
        limit_alphabet=len(alphabet),
        show_progress=False,
    )
    draft = _bert(models.WordPiece(unk_token=UNKNOWN), lowercase=True)
    draft.train_from_iterator(held, trainer)
    return _finished(models.WordPiece(draft.get_vocab(), unk_token=UNKNOWN), lowercase=True)


def from_vocabulary(file: Path, *, lowercase: bool) -> Tokenizer:
    return _finished(models.WordPiece.from_file(str(file), unk_token=UNKNOWN), lowercase=lowercase)


def _finished(model: models.WordPiece, *, lowercase: bool) -> Tokenizer:
    tokenizer = _bert(model, lowercase=lowercase)
    there = [token for token in SPECIALS if tokenizer.token_to_id(token) is not None]
    tokenizer.add_special_tokens(there)
    if CLASS in there and SEPARATOR in there:
        tokenizer.post_processor = processors.TemplateProcessing(
            single=f"{CLASS} $A {SEPARATOR}",
            pair=f"{CLASS} $A {SEPARATOR} $B:1 {SEPARATOR}:1",
            special_tokens=[(token, tokenizer.token_to_id(token)) for token in (CLASS, SEPARATOR)],
        )
    return tokenizer


def _bert(model: models.WordPiece, *, lowercase: bool) -> Tokenizer:
    tokenizer = Tokenizer(model)
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=lowercase)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    return tokenizer
