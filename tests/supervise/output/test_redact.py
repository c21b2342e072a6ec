"""A log does not show known secrets, in the forms that programs print, or anything that looks like a token."""

import json
import random
from base64 import b64encode, urlsafe_b64encode
from urllib.parse import quote, quote_plus

import pytest

from stoker.supervise.output.redact import Redactor, undeclared_secrets

SECRET = "p@ss/w+rd:ünï code?&x=1"
TOKENS = {
    "Hugging Face": "hf_" + "aB3" * 11,
    "AWS key id": "AKIA" + "Q7" * 8,
    "GitHub": "ghp_" + "x9" * 18,
    "GitHub, fine-grained": "github_pat_" + "11AB_" * 12,
    "GitLab": "glpat-" + "Zz9-" * 5,
    "OpenAI": "sk-proj-" + "Ab_9" * 8,
    "Slack": "xoxb-" + "123456789012-abcdef",
    "Google": "AIza" + "Sy-3" * 9,
    "JWT": "eyJhbGciOiJSUzI1NiJ9.eyJpc3MiOiJrdWJlIn0.c2lnbmF0dXJl",
}


@pytest.mark.parametrize("before", ["", "u", "us", "user:"])
@pytest.mark.parametrize("encode", [b64encode, urlsafe_b64encode])
def test_a_secret_in_base64_is_masked_at_any_offset(before: str, encode) -> None:
    redact = Redactor([SECRET])
    for after in ("", "!", "!!", ": and more"):
        printed = encode(f"{before}{SECRET}{after}".encode())
        shown = redact(b"Authorization: Basic " + printed + b"\n")
        kept = shown.removeprefix(b"Authorization: Basic ").replace(b"***", b"").strip()
        assert b"***" in shown
        around = len(encode(f"{before}{after}".encode()))
        assert len(kept) <= around + 4, "at most a character or two on each side of the secret is masked too"


@pytest.mark.parametrize(
    "form",
    [
        SECRET, repr(SECRET), json.dumps(SECRET), quote(SECRET), quote(SECRET, safe=""), quote_plus(SECRET),
        quote(SECRET, safe="").replace("%2F", "%2f").replace("%C3", "%c3").replace("%BC", "%bc").replace("%AF", "%af")
        .replace("%3A", "%3a").replace("%3F", "%3f").replace("%2B", "%2b").replace("%3D", "%3d"),
    ],
)  # fmt: skip
def test_a_secret_is_masked_when_quoted_and_in_a_url(form: str) -> None:
    shown = Redactor([SECRET]).text(f"GET https://host/?key={form}&page=2")
    assert "***" in shown
    assert "w+rd" not in shown
    assert "rd%" not in shown
    assert shown.startswith("GET https://host/?key=")


def test_every_line_of_a_longer_secret_and_its_base64_are_masked() -> None:
    key = "-----BEGIN KEY-----\nMIIabcdefgh\nzyxwvutsrq\n-----END KEY-----\n"
    redact = Redactor([key])
    assert redact(b"first MIIabcdefgh then zyxwvutsrq\n") == b"first *** then ***\n"
    assert redact(b64encode(key.encode())).count(b"***") == 1
    assert len(redact(b64encode(key.encode()))) < 8


@pytest.mark.parametrize("kind", TOKENS)
def test_what_looks_like_a_token_is_masked_even_if_it_is_not_declared(kind: str) -> None:
    token = TOKENS[kind]
    for line in (f"token={token}", f'{{"auth": "{token}"}}', f"{token} and more", repr(f"a\n{token}\n")):
        shown = Redactor().text(line)
        assert token not in shown
        assert token[8:] not in shown
        assert "***" in shown


@pytest.mark.parametrize(
    ("line", "shown"),
    [
        ("pull https://me:hunter22@hub.test/x", "pull https://me:***@hub.test/x"),
        ("s3://:only-a-password@bucket/x", "s3://:***@bucket/x"),
        ("Authorization: Bearer abcdef0123456789abcdef", "Authorization: Bearer ***"),
        (f"aws_secret_access_key = {'a1/+' * 10}", "aws_secret_access_key = ***"),
        (f'"SecretAccessKey": "{"a1/+" * 10}"', '"SecretAccessKey": "***"'),
        (f"AWS_SECRET_ACCESS_KEY={'a1/+' * 10}", "AWS_SECRET_ACCESS_KEY=***"),
    ],
)
def test_only_the_secret_in_a_url_or_assignment_is_masked(line: str, shown: str) -> None:
    assert Redactor().text(line) == shown


@pytest.mark.parametrize(
    "line",
    [
        "step 10 loss 2.31 tokens/s 12,345",
        "task-specific-parameters-of-the-model-are-here",
        "the disk-cache-of-tokenized-data-is-being-written",
        "http://localhost:8080/metrics and mailto:me@host",
        "https://host:443/a@b",
        "half_precision_checkpoint_converter_started",
        "hf_hub_download took 3 s",
        "sk-learn",
        "bearer of bad news",
        "3f786850e387550fdab836ed7e6dc881de23001b",
        "eyJ is how base64 of JSON begins",
    ],
)
def test_ordinary_lines_stay_as_they_are(line: str) -> None:
    assert Redactor().text(line) == line


def test_variables_are_secrets_by_their_name_unless_they_hold_a_location_or_a_short_value() -> None:
    secret = ["HF_TOKEN", "WANDB_API_KEY", "AWS_SECRET_ACCESS_KEY", "DB_PASSWORD", "MY_SECRET_THING", "APIKEY", "token"]
    plain = ["TOKENIZERS_PARALLELISM", "MAX_TOKENS", "AWS_WEB_IDENTITY_TOKEN_FILE", "SECRET_NAME", "KEYBOARD", "PATH"]
    values = {name: f"value-of-{name}" for name in [*secret, *plain]} | {"EOS_TOKEN": "</s>"}
    assert sorted(undeclared_secrets(values)) == sorted(f"value-of-{name}" for name in secret)


def test_however_a_text_is_cut_no_part_of_a_secret_is_shown() -> None:
    """As the output reader does: the possible start of a secret is kept until more is read."""
    draw = random.Random(3)
    hidden = [*TOKENS.values(), "hunter22-of-mine", b64encode(b"hunter22-of-mine").decode()]
    redact = Redactor(["hunter22-of-mine"])
    key = "a1/+" * 10
    more = f" | https://me:open-sesame@host | Bearer abcdef0123456789abcdef | SecretAccessKey: {key} |"
    text = (" - ".join(hidden) + more).encode()
    for _ in range(300):
        rest, shown = b"", b""
        places = sorted(draw.sample(range(1, len(text)), draw.randint(1, 8)))
        for start, stop in zip([0, *places], [*places, len(text)], strict=True):
            rest += text[start:stop]
            free = len(rest) - redact.partial_secret(rest)
            shown, rest = shown + redact(rest[:free]), rest[free:]
        shown += redact(rest)
        for secret in [*hidden, "open-sesame", "abcdef0123456789abcdef", key]:
            assert secret[-8:].encode() not in shown, places
