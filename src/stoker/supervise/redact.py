"""What must not be read in a log: secrets that are known by their value, and what has the shape of one."""

import json
import re
from base64 import b64encode
from collections.abc import Iterable, Mapping
from typing import NamedTuple
from urllib.parse import quote, quote_plus

SHORTEST = 4  # characters: a shorter value would blot out half of every log, and hides nothing
SHORTEST_UNDECLARED = 8  # of a variable that only its name makes a secret: EOS_TOKEN=</s> is none
SHORTEST_BASE64 = 6  # characters of the part that does not depend on what stands around the secret
BLOT = b"***"

SECRET_NAME = re.compile(
    r"(?:^|_)(?:TOKEN|PASSWORD|PASSWD|PASSPHRASE|API_?KEY|ACCESS_KEY|PRIVATE_KEY|CREDENTIALS?)$|(?:^|_)SECRETS?(?:_|$)",
    re.IGNORECASE,
)
PLACE_NAME = re.compile(r"_(?:FILE|PATH|DIR|URL|NAME|ID)$", re.IGNORECASE)  # says where a secret is, not what
ESCAPE = re.compile("%[0-9A-F]{2}")  # of a URL; some programs write it in small letters
LOOK_BACK = 4096  # bytes in which the beginning of a shape is looked for


class Shape(NamedTuple):
    """A kind of token, or a place where secrets stand."""

    begin: bytes
    """Without these bytes there is nothing to look for; far quicker found than the pattern."""
    pattern: bytes
    """What is hidden; a first group of it stays."""
    unfinished: bytes
    """What may be the beginning of it, where the text ends."""


def _token(begin: bytes, follow: bytes, least: int, *, apart: bool = False) -> Shape:
    """`apart`: only where no letter or digit is before it, as in disk-…, but that of an escaped newline."""
    head = re.escape(begin)
    if apart:  # looked at last: a pattern that begins with plain text is found far quicker
        head += rb"(?:(?<![A-Za-z0-9]%b)|(?<=\\[nrt]%b))" % (head, head)
    return Shape(begin, rb"%b[%b]{%d,}" % (head, follow, least), rb"%b[%b]*" % (head, follow))


def _key(begin: bytes, name: bytes) -> Shape:
    """`name = "…"`, of an AWS key."""
    follow = rb"[A-Za-z0-9/+]"
    is_ = rb"[\"']?\s{0,4}[:=]\s{0,4}[\"']?"
    unfinished = rb"%b[A-Za-z_\-]*[\"']?\s{0,4}[:=]?\s{0,4}[\"']?%b*" % (begin, follow)
    return Shape(begin, rb"(%b%b)%b{40}" % (name, is_, follow), unfinished)


PLAIN, DASHED, BEARER = rb"A-Za-z0-9", rb"A-Za-z0-9_\-", rb"[A-Za-z0-9._~+/=\-]"
SHAPES = [
    _token(b"hf_", PLAIN, 20),
    *(_token(prefix, rb"A-Z0-9", 16) for prefix in (b"AKIA", b"ASIA")),
    *(_token(prefix, PLAIN, 30) for prefix in (b"ghp_", b"gho_", b"ghu_", b"ghs_", b"ghr_")),
    _token(b"github_pat_", rb"A-Za-z0-9_", 30),
    _token(b"glpat-", DASHED, 20),
    _token(b"sk-", DASHED, 20, apart=True),
    *(_token(prefix, rb"A-Za-z0-9\-", 10) for prefix in (b"xoxa-", b"xoxb-", b"xoxp-", b"xoxr-", b"xoxs-")),
    _token(b"AIza", DASHED, 30),
    _token(b"ya29.", DASHED, 20, apart=True),
    Shape(b"eyJ", rb"eyJ[%b]{8,}\.[%b]{8,}\.[%b]{8,}" % (DASHED, DASHED, DASHED), rb"eyJ[%b.]*" % DASHED),  # JWT
    Shape(b"://", rb"(://[^\s/:@]{0,256}:)[^\s/@]{1,1024}(?=@)", rb"://[^\s/@]*"),
    *(
        Shape(word, rb"(%b\s{1,4})%b{16,}" % (word, BEARER), rb"%b\s{0,4}%b*" % (word, BEARER))
        for word in (b"Bearer", b"bearer")
    ),
    _key(b"secret", rb"secret[_-]?access[_-]?key"),
    _key(b"Secret", rb"Secret[_-]?Access[_-]?Key"),
    _key(b"SECRET", rb"SECRET_ACCESS_KEY"),
]
PATTERNS = [(shape.begin, re.compile(shape.pattern)) for shape in SHAPES]
UNFINISHED = re.compile(rb"(?:%b)\Z" % b"|".join(shape.unfinished for shape in SHAPES))


class Redactor:
    """Replaces known values, in the forms in which programs print them, and what has the shape of a token.

    Of a value: each of its lines, as it is, quoted by Python or JSON, encoded for a URL, or in base64 on one line.
    """

    def __init__(self, values: Iterable[str] = ()) -> None:
        words = {form for value in values for form in _forms(value)}
        self._words = sorted(words, key=len, reverse=True)  # one may hold another

    def __call__(self, data: bytes) -> bytes:
        for word in self._words:
            data = data.replace(word, BLOT)
        for needed, pattern in PATTERNS:
            if needed in data:
                data = pattern.sub(_blot, data)
        return data

    def begun(self, data: bytes) -> int:
        """How many bytes at the end of it may be the beginning of a secret."""
        return max(self.begun_value(data), _begun_shape(data[-LOOK_BACK:]))

    def begun_value(self, data: bytes) -> int:
        """The same of known values alone."""
        return max((_overlap(data, word) for word in self._words), default=0)

    def text(self, text: str) -> str:
        return self(text.encode(errors="surrogateescape")).decode(errors="surrogateescape")


def undeclared(environment: Mapping[str, str]) -> list[str]:
    """Values of variables whose names say that they are secrets."""
    return [
        value
        for name, value in environment.items()
        if SECRET_NAME.search(name) and not PLACE_NAME.search(name) and len(value) >= SHORTEST_UNDECLARED
    ]


def _forms(value: str) -> Iterable[bytes]:
    for line in {line.strip() for line in value.splitlines()}:
        quoted = (repr(line)[1:-1], json.dumps(line)[1:-1])
        plain = line.encode(errors="surrogateescape")
        in_urls = (quote(plain, safe=""), quote(plain), quote_plus(plain))
        forms = {line, *quoted, *in_urls, *(ESCAPE.sub(lambda found: found[0].lower(), form) for form in in_urls)}
        yield from (form.encode(errors="surrogateescape") for form in forms if len(form) >= SHORTEST)
    for text in {value, value.strip(), *(line.strip() for line in value.splitlines())}:
        yield from _in_base64(text.encode(errors="surrogateescape"))


def _in_base64(value: bytes) -> Iterable[bytes]:
    """The characters that a value gives wherever it begins in what is encoded, in both alphabets."""
    for before in range(3):
        whole = b64encode(bytes(before) + value)
        core = whole[-(-8 * before // 6) : 8 * (before + len(value)) // 6]
        if len(core) >= SHORTEST_BASE64:
            yield from {core, core.translate(bytes.maketrans(b"+/", b"-_"))}


def _overlap(data: bytes, word: bytes) -> int:
    at = data.find(word[:1], max(0, len(data) - len(word) + 1))
    while at >= 0:
        if word.startswith(data[at:]):
            return len(data) - at
        at = data.find(word[:1], at + 1)
    return 0


def _blot(found: re.Match[bytes]) -> bytes:
    head: bytes = found[1] if found.re.groups else b""
    return head + BLOT


def _begun_shape(data: bytes) -> int:
    if found := UNFINISHED.search(data):
        return len(data) - found.start()
    longest = max(len(shape.begin) for shape in SHAPES) - 1
    for length in range(min(longest, len(data)), 0, -1):
        inside_a_word = length == 1 and len(data) > 1 and data[-2:].isalnum()  # one letter there says nothing
        if not inside_a_word and any(shape.begin.startswith(data[-length:]) for shape in SHAPES):
            return length
    return 0
