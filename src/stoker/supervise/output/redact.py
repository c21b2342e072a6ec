"""Replaces secrets in output: those whose value is known, and text that looks like a token of a known kind."""

import json
import re
from base64 import b64encode
from collections.abc import Iterable, Mapping
from typing import NamedTuple
from urllib.parse import quote, quote_plus

MIN_SECRET_CHARS = 4  # a shorter value would mask half of every log and protect nothing
MIN_UNDECLARED_CHARS = 8  # of a variable that is a secret by its name only: EOS_TOKEN=</s> is not one
MIN_BASE64_CHARS = 6  # of the part that does not depend on the text around the secret
MASK = b"***"

SECRET_NAME = re.compile(
    r"(?:^|_)(?:TOKEN|PASSWORD|PASSWD|PASSPHRASE|API_?KEY|ACCESS_KEY|PRIVATE_KEY|CREDENTIALS?)$|(?:^|_)SECRETS?(?:_|$)",
    re.IGNORECASE,
)
LOCATION_NAME = re.compile(r"_(?:FILE|PATH|DIR|URL|NAME|ID)$", re.IGNORECASE)  # where a secret is, not its value
URL_ESCAPE = re.compile("%[0-9A-F]{2}")  # some programs write it in lower case
LOOK_BACK_BYTES = 4096  # at the end of the text, searched for the start of a token


class SecretPattern(NamedTuple):
    """A kind of token, or a context in which a secret follows."""

    start: bytes
    """Without these bytes in the text the pattern cannot match; searching for them is much faster."""
    pattern: bytes
    """What is masked; its first group, if any, is kept."""
    unfinished: bytes
    """Matches what may be the start of a secret at the end of the text."""


def _token(start: bytes, chars: bytes, min_chars: int, *, at_word_start: bool = False) -> SecretPattern:
    """`at_word_start`: not after a letter or digit, as in disk-…, except after an escaped newline or tab."""
    head = re.escape(start)
    if at_word_start:  # checked after the plain text: a pattern that starts with plain text is much faster
        head += rb"(?:(?<![A-Za-z0-9]%b)|(?<=\\[nrt]%b))" % (head, head)
    return SecretPattern(start, rb"%b[%b]{%d,}" % (head, chars, min_chars), rb"%b[%b]*" % (head, chars))


def _aws_key(start: bytes, name: bytes) -> SecretPattern:
    """`name = "…"`"""
    chars = rb"[A-Za-z0-9/+]"
    assign = rb"[\"']?\s{0,4}[:=]\s{0,4}[\"']?"
    unfinished = rb"%b[A-Za-z_\-]*[\"']?\s{0,4}[:=]?\s{0,4}[\"']?%b*" % (start, chars)
    return SecretPattern(start, rb"(%b%b)%b{40}" % (name, assign, chars), unfinished)


PLAIN, DASHED, BEARER = rb"A-Za-z0-9", rb"A-Za-z0-9_\-", rb"[A-Za-z0-9._~+/=\-]"
SECRET_PATTERNS = [
    _token(b"hf_", PLAIN, 20),
    *(_token(prefix, rb"A-Z0-9", 16) for prefix in (b"AKIA", b"ASIA")),
    *(_token(prefix, PLAIN, 30) for prefix in (b"ghp_", b"gho_", b"ghu_", b"ghs_", b"ghr_")),
    _token(b"github_pat_", rb"A-Za-z0-9_", 30),
    _token(b"glpat-", DASHED, 20),
    _token(b"sk-", DASHED, 20, at_word_start=True),
    *(_token(prefix, rb"A-Za-z0-9\-", 10) for prefix in (b"xoxa-", b"xoxb-", b"xoxp-", b"xoxr-", b"xoxs-")),
    _token(b"AIza", DASHED, 30),
    _token(b"ya29.", DASHED, 20, at_word_start=True),
    SecretPattern(  # JWT
        b"eyJ", rb"eyJ[%b]{8,}\.[%b]{8,}\.[%b]{8,}" % (DASHED, DASHED, DASHED), rb"eyJ[%b.]*" % DASHED
    ),
    SecretPattern(b"://", rb"(://[^\s/:@]{0,256}:)[^\s/@]{1,1024}(?=@)", rb"://[^\s/@]*"),
    *(
        SecretPattern(scheme, rb"(%b\s{1,4})%b{16,}" % (scheme, BEARER), rb"%b\s{0,4}%b*" % (scheme, BEARER))
        for scheme in (b"Bearer", b"bearer")
    ),
    _aws_key(b"secret", rb"secret[_-]?access[_-]?key"),
    _aws_key(b"Secret", rb"Secret[_-]?Access[_-]?Key"),
    _aws_key(b"SECRET", rb"SECRET_ACCESS_KEY"),
]
COMPILED = [(kind.start, re.compile(kind.pattern)) for kind in SECRET_PATTERNS]
UNFINISHED = re.compile(rb"(?:%b)\Z" % b"|".join(kind.unfinished for kind in SECRET_PATTERNS))


class Redactor:
    """Masks known values, in the forms in which programs print them, and everything that looks like a token.

    Forms of a value: each of its lines as it is, quoted by Python or JSON, URL-encoded, or in base64 on one line.
    """

    def __init__(self, values: Iterable[str] = ()) -> None:
        forms = {form for value in values for form in _forms(value)}
        self._forms = sorted(forms, key=len, reverse=True)  # a form may contain another

    def __call__(self, data: bytes) -> bytes:
        for form in self._forms:
            data = data.replace(form, MASK)
        for start, pattern in COMPILED:
            if start in data:
                data = pattern.sub(_mask, data)
        return data

    def partial_secret(self, data: bytes) -> int:
        """How many bytes at the end of the data may be the start of a secret."""
        return max(self.partial_value(data), _partial_token(data[-LOOK_BACK_BYTES:]))

    def partial_value(self, data: bytes) -> int:
        """How many bytes at the end of the data may be the start of a known value."""
        return max((_overlap(data, form) for form in self._forms), default=0)

    def text(self, text: str) -> str:
        return self(text.encode(errors="surrogateescape")).decode(errors="surrogateescape")


def undeclared_secrets(environment: Mapping[str, str]) -> list[str]:
    """Values of variables whose names suggest that they are secrets."""
    return [
        value
        for name, value in environment.items()
        if SECRET_NAME.search(name) and not LOCATION_NAME.search(name) and len(value) >= MIN_UNDECLARED_CHARS
    ]


def _forms(value: str) -> Iterable[bytes]:
    for line in {line.strip() for line in value.splitlines()}:
        quoted = (repr(line)[1:-1], json.dumps(line)[1:-1])
        plain = line.encode(errors="surrogateescape")
        in_urls = (quote(plain, safe=""), quote(plain), quote_plus(plain))
        forms = {line, *quoted, *in_urls, *(URL_ESCAPE.sub(_lower, form) for form in in_urls)}
        yield from (form.encode(errors="surrogateescape") for form in forms if len(form) >= MIN_SECRET_CHARS)
    for text in {value, value.strip(), *(line.strip() for line in value.splitlines())}:
        yield from _in_base64(text.encode(errors="surrogateescape"))


def _in_base64(value: bytes) -> Iterable[bytes]:
    """The base64 characters of a value at each of the three possible offsets, in both alphabets."""
    for offset in range(3):
        whole = b64encode(bytes(offset) + value)
        core = whole[-(-8 * offset // 6) : 8 * (offset + len(value)) // 6]
        if len(core) >= MIN_BASE64_CHARS:
            yield from {core, core.translate(bytes.maketrans(b"+/", b"-_"))}


def _overlap(data: bytes, form: bytes) -> int:
    at = data.find(form[:1], max(0, len(data) - len(form) + 1))
    while at >= 0:
        if form.startswith(data[at:]):
            return len(data) - at
        at = data.find(form[:1], at + 1)
    return 0


def _lower(match: re.Match[str]) -> str:
    return match[0].lower()


def _mask(match: re.Match[bytes]) -> bytes:
    kept: bytes = match[1] if match.re.groups else b""
    return kept + MASK


def _partial_token(data: bytes) -> int:
    if match := UNFINISHED.search(data):
        return len(data) - match.start()
    longest = max(len(kind.start) for kind in SECRET_PATTERNS) - 1
    for length in range(min(longest, len(data)), 0, -1):
        inside_word = length == 1 and len(data) > 1 and data[-2:].isalnum()  # a single letter there means nothing
        if not inside_word and any(kind.start.startswith(data[-length:]) for kind in SECRET_PATTERNS):
            return length
    return 0
