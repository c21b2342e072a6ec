"""A SentencePiece model (tokenizer.model) as a tokenizer of the tokenizers library: the same ids, the same text.

The file is a protobuf message: pieces of text, each with a score and a kind, and how text is normalised. Only these are
read, and nothing of the file is ever run.

BPE without normalisation rules, as in Llama 2, is exact. Otherwise the tokenizers library differs in a few cases: a
control piece that is spelled out, such as </s>, becomes that token; text beside a user-defined symbol is normalised on
its own; a rule for the first of several code points of a character is applied to all of them; and among cuts with
the same score, unigram may choose another.
"""

import struct
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

SPACE = "▁"
UNIGRAM, BPE = 1, 2
NORMAL, UNKNOWN, CONTROL, USER, UNUSED = 1, 2, 3, 4, 5  # kinds of pieces; a sixth are bytes
UNKNOWN_SHOWN = " ⁇ "  # how SentencePiece shows an unknown piece
TRIMMED = r"\A +| +\z"
MERGED_AT_ONCE = f"{SPACE}*[^{SPACE}]+|{SPACE}+"


class VocabularyPiece(NamedTuple):
    text: str
    score: float
    kind: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Proto:
    """The content of the file, with SentencePiece's defaults."""

    pieces: list[VocabularyPiece]
    model: int
    byte_fallback: bool
    suffix: bool
    """Spaces belong to the word before them."""
    charsmap: bytes
    prefix: bool
    """A space is added before the text."""
    squeeze: bool
    """Repeated spaces are collapsed, and those at the ends removed."""
    escape: bool
    """Spaces are written as ▁."""
    unknown_shown: str


def read(data: bytes) -> Tokenizer:
    """Raises ValueError if it cannot be read."""
    proto = _parse(data)
    for problem, applies in (
        ("its model is neither BPE nor unigram", proto.model not in (UNIGRAM, BPE)),
        ("it puts spaces after words", proto.suffix),
        ("it keeps spaces as they are", not proto.escape),
        ("it has pieces that are not used", any(piece.kind == UNUSED for piece in proto.pieces)),
        ("it has no piece for what is unknown", all(piece.kind != UNKNOWN for piece in proto.pieces)),
    ):
        if applies:
            raise ValueError(problem)
    tokenizer = Tokenizer(_unigram(proto) if proto.model == UNIGRAM else _bpe(proto))
    tokenizer.normalizer = _normalizer(proto)
    if proto.model == UNIGRAM or all(SPACE not in piece.text.lstrip(SPACE) for piece in proto.pieces):
        # No piece spans a space, so each word can be processed by itself: faster, with the same result.
        tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(MERGED_AT_ONCE), "isolated")
    tokenizer.decoder = _decoder(proto)
    for kind, special in ((CONTROL, True), (USER, False)):
        added = [
            AddedToken(piece.text, special=special, normalized=False) for piece in proto.pieces if piece.kind == kind
        ]
        (tokenizer.add_special_tokens if special else tokenizer.add_tokens)(added)
    return tokenizer


def _bpe(proto: Proto) -> models.BPE:
    ids = {piece.text: number for number, piece in enumerate(proto.pieces)}
    unknown = next(piece.text for piece in proto.pieces if piece.kind == UNKNOWN)
    return models.BPE(ids, _merges(proto.pieces), unk_token=unknown, fuse_unk=True, byte_fallback=proto.byte_fallback)


def _merges(pieces: Sequence[VocabularyPiece]) -> list[tuple[str, str]]:
    """SentencePiece joins the neighbours that form the piece with the best score; with equal scores, the leftmost.

    Here every pair has its own rank. Two pairs that form the same piece can only compete over a shared middle (x y and
    y z are the same text): the pair that starts with the start of the piece again is the left pair, and ranks first.
    """
    normal = {piece.text for piece in pieces if piece.kind == NORMAL}
    merges = []
    for piece in sorted((piece for piece in pieces if piece.kind == NORMAL), key=lambda piece: -piece.score):
        text = piece.text
        cuts = [cut for cut in range(1, len(text)) if text[:cut] in normal and text[cut:] in normal]
        cuts.sort(key=lambda cut: not text.startswith(text[cut:]))
        merges += [(text[:cut], text[cut:]) for cut in cuts]
    return merges


def _unigram(proto: Proto) -> models.Unigram:
    """Text that spells a control piece could match it, so such pieces get a score below that of any text."""
    out_of_reach = min((piece.score for piece in proto.pieces if piece.kind == NORMAL), default=0.0) - 1000
    vocabulary = [(piece.text, piece.score if piece.kind == NORMAL else out_of_reach) for piece in proto.pieces]
    unknown = next(number for number, piece in enumerate(proto.pieces) if piece.kind == UNKNOWN)
    return models.Unigram(vocabulary, unknown, proto.byte_fallback)


def _normalizer(proto: Proto) -> normalizers.Normalizer:
    steps: list[normalizers.Normalizer] = []
    if proto.charsmap:
        steps.append(normalizers.Precompiled(proto.charsmap))
    if proto.squeeze:
        steps.append(normalizers.Replace(Regex(TRIMMED), ""))
        steps.append(normalizers.Replace(Regex(" +"), SPACE))
    if proto.prefix:
        steps.append(normalizers.Prepend(SPACE))
    steps.append(normalizers.Replace(" ", SPACE))
    return normalizers.Sequence(steps)


def _decoder(proto: Proto) -> decoders.Decoder:
    unknown = next(piece.text for piece in proto.pieces if piece.kind == UNKNOWN)
    steps: list[decoders.Decoder] = [
        decoders.Replace(unknown, proto.unknown_shown),
        decoders.Replace(SPACE, " "),
        decoders.ByteFallback(),
        decoders.Fuse(),
    ]
    if proto.prefix:
        steps.append(decoders.Strip(content=" ", left=1))
    return decoders.Sequence(steps)


def _parse(data: bytes) -> Proto:
    message = _fields(data)
    if not all(number in message for number in (1, 2, 3)):  # pieces, how it was trained, how text is normalised
        raise ValueError("it is not a SentencePiece model, or it is truncated")
    trainer = _fields(_last_bytes(message, 2))
    normalizer = _fields(_last_bytes(message, 3))
    shown = _last_bytes(trainer, 44)
    return Proto(
        pieces=[_piece(_as_bytes(item)) for item in message[1]],
        model=_last_int(trainer, 3, UNIGRAM),
        byte_fallback=bool(_last_int(trainer, 35, 0)),
        suffix=bool(_last_int(trainer, 24, 0)),
        charsmap=_last_bytes(normalizer, 2),
        prefix=bool(_last_int(normalizer, 3, 1)),
        squeeze=bool(_last_int(normalizer, 4, 1)),
        escape=bool(_last_int(normalizer, 5, 1)),
        unknown_shown=shown.decode() if shown else UNKNOWN_SHOWN,
    )


def _piece(data: bytes) -> VocabularyPiece:
    fields = _fields(data)
    (score,) = struct.unpack("<f", _last_bytes(fields, 2) or bytes(4))
    return VocabularyPiece(text=_last_bytes(fields, 1).decode(), score=score, kind=_last_int(fields, 3, NORMAL))


Value = int | bytes


def _fields(data: bytes) -> dict[int, list[Value]]:
    """A protobuf message, one level deep: number of the field -> its values, in order."""
    fields: dict[int, list[Value]] = defaultdict(list)
    for number, value in _walk(data):
        fields[number].append(value)
    return fields


def _walk(data: bytes) -> Iterator[tuple[int, Value]]:
    at = 0
    while at < len(data):
        key, at = _varint(data, at)
        kind = key & 7
        if kind == 0:
            value, at = _varint(data, at)
            yield key >> 3, value
            continue
        if kind == 2:
            size, at = _varint(data, at)
        elif kind in (1, 5):
            size = 8 if kind == 1 else 4
        else:
            raise ValueError("it is no SentencePiece model")
        if at + size > len(data):
            raise ValueError("it ends in the middle of a piece")
        yield key >> 3, data[at : at + size]
        at += size


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while at < len(data) and shift < 64:
        byte = data[at]
        value |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:
            return value, at
    raise ValueError("it is no SentencePiece model")


def _as_bytes(value: Value) -> bytes:
    if not isinstance(value, bytes):
        raise ValueError("it is no SentencePiece model")
    return value


def _last_bytes(fields: dict[int, list[Value]], number: int) -> bytes:
    return _as_bytes(fields[number][-1]) if number in fields else b""


def _last_int(fields: dict[int, list[Value]], number: int, default: int) -> int:
    value = fields[number][-1] if number in fields else default
    if not isinstance(value, int):
        raise ValueError("it is no SentencePiece model")
    return value
