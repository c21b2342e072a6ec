"""BERT's WordPiece: trained on the data, or read from a vocab.txt; and the word boundaries for masking."""

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
class MaskingVocabulary:
    """What masking needs to know about a vocabulary."""

    begin: int
    separator: int
    mask: int
    special: NDArray[np.bool_]
    """For each id: a special token, which is never masked."""
    inner: NDArray[np.bool_]
    """For each id: it continues the word before it."""
    plain: NDArray[np.int64]
    """Ids that are not special."""


def masking_vocabulary(tokenizer: Tokenizer, origin: object) -> MaskingVocabulary:
    """`origin` names the tokenizer in the error when special tokens are missing."""
    missing = [token for token in NEEDED if tokenizer.token_to_id(token) is None]
    if missing:
        raise UserError(
            f"the tokenizer {origin} has no {', '.join(missing)}, and a masked model needs {', '.join(NEEDED)}",
            remedy="Give one of BERT's, by tokenizer.json or vocab.txt, or train one: data.tokenizer='{train: 8000}'",
        )
    vocabulary = tokenizer.get_vocab(with_added_tokens=True)
    special, inner = np.zeros((2, 1 + max(vocabulary.values())), bool)
    known = np.zeros(len(special), bool)
    known[list(vocabulary.values())] = True
    inner[[id for token, id in vocabulary.items() if token.startswith(INNER)]] = True
    added = [id for id, token in tokenizer.get_added_tokens_decoder().items() if token.special]
    special[[*added, *(vocabulary[token] for token in SPECIALS if token in vocabulary)]] = True
    return MaskingVocabulary(
        begin=vocabulary[CLASS],
        separator=vocabulary[SEPARATOR],
        mask=vocabulary[MASK],
        special=special,
        inner=inner,
        plain=np.flatnonzero(known & ~special),
    )


def train(size: int, texts: Iterator[str]) -> Tokenizer:
    """Lower case, without accents, words split at blanks and punctuation: the normalizer of BERT's uncased models."""
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
    # The trainer numbers the characters inside words in the order of a hash table, which differs by process, and breaks
    # ties by these numbers. Listed beforehand, they are the same each time.
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
    specials = [token for token in SPECIALS if tokenizer.token_to_id(token) is not None]
    tokenizer.add_special_tokens(specials)
    if CLASS in specials and SEPARATOR in specials:
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
