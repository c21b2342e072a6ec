"""Is an exported folder the model that we say it is? transformers is asked, in a process of its own.

    python -m stoker.train.parity FOLDER        prints the record as JSON; 0 proven, 3 failed, 2 unproven

Both sides read the folder and compute in fp32, whatever dtype it is in: the logits of fixed tokens must agree to
TOLERANCE of the largest of them, greedy decoding must give the same tokens, and both tokenizers the same ids and text.
A folder that has a stoker.json must also hold the very files that it lists.
"""

import hashlib
import importlib
import json
import os
import platform
import subprocess
import sys
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from stoker.data.tokenizer import LoadedTokenizer
from stoker.data.wordpiece import SEPARATOR
from stoker.rundir import Record
from stoker.spec import contract
from stoker.spec.errors import UserError
from stoker.spec.forms import form_of
from stoker.train.load import LoadedModel, load_model
from stoker.train.models.bert import Bert

RECORD_FILE = "stoker.json"
TOLERANCE = 1e-4  # fp32 sums taken in another order differ by some 1e-6 of the largest logit
ROWS, LENGTH, GREEDY, PROMPT = 4, 64, 32, 8
QUIET = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_VERBOSITY": "error", "TOKENIZERS_PARALLELISM": "false"}
CODES = {"proven": contract.EXIT_DONE, "failed": contract.EXIT_FAILED, "unproven": contract.EXIT_USER}
TEXTS = (
    "The stoker feeds the fire, and the old engine pulls its forty waggons over the pass before dawn.",
    "  two spaces,\ta tab,\n\nan empty line\r\nand a trailing space ",
    "naïve café – “quoted” … it's, they'll, I'D",
    "日本語の文章。Русский текст. עברית. हिन्दी",
    "🔥🚂 e\u0301 \u200b\ufeff",
    "def f(x: int) -> int:\n    return x ** 2  # 1234567890, 3.14159\n",
    "one document<|endoftext|>another",
    "z" * 300,
    "",
)


def prove(folder: Path) -> Record:
    """The record of a fresh process: nothing of this one can help the folder to pass."""
    command = [sys.executable, "-m", "stoker.train.parity", str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, env=os.environ | QUIET)
    try:
        record: Record = json.loads(done.stdout.splitlines()[-1])
    except (IndexError, ValueError):
        last = " ".join(done.stderr.strip().splitlines()[-1:])
        return _record("unproven", [f"the check ended with code {done.returncode}: {last}"])
    return record


def check(folder: Path) -> Record:
    problems = _changed(folder)
    try:
        transformers: Any = importlib.import_module("transformers")
        tokenizer_class = transformers.AutoTokenizer
    except (ImportError, AttributeError) as e:
        why = f"transformers cannot be asked: {_first_line(e)}"
        return _record("failed" if problems else "unproven", [*problems, why])
    try:
        ours = load_model(folder, device="cpu")
        tokenizer = ours.read_tokenizer()
    except UserError as e:
        return _record("failed", [*problems, str(e)])
    try:
        model, notes = getattr(transformers, form_of(ours.shape).auto).from_pretrained(
            folder, dtype=torch.float32, local_files_only=True, trust_remote_code=False, output_loading_info=True
        )
        theirs = tokenizer_class.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    except Exception as e:  # whatever it is that its many layers raise
        return _record("failed", [*problems, f"transformers cannot load it: {type(e).__name__}: {_first_line(e)}"])
    for kind in ("missing_keys", "unexpected_keys", "mismatched_keys"):
        if notes.get(kind):
            problems.append(f"transformers reports {kind.replace('_', ' ')}: {sorted(notes[kind])[:5]}")
    model = model.eval()
    choice = {"masked": _likeliest} if ours.shape.masked else {"greedy": _greedy}
    found = {
        "logits": _logits(ours, model, problems),
        **{name: compare(ours, model, problems) for name, compare in choice.items()},
        "tokenizer": _texts(tokenizer, theirs, problems),
    }
    return _record("failed" if problems else "proven", problems) | found


def facts(file: Path) -> Record:
    """What a record keeps of a file."""
    with open(file, "rb") as opened:
        return {"bytes": file.stat().st_size, "sha256": hashlib.file_digest(opened, "sha256").hexdigest()}


def _record(verdict: str, problems: list[str]) -> Record:
    names = ("torch", "transformers", "tokenizers", "safetensors")
    loaded = {name: str(getattr(sys.modules.get(name), "__version__", "")) for name in names}
    versions = {"python": platform.python_version()} | {name: version for name, version in loaded.items() if version}
    return {"verdict": verdict, "problems": problems, "versions": versions}


def _changed(folder: Path) -> list[str]:
    """Files that are not what an earlier record says; none when there is no record yet."""
    try:
        files = json.loads((folder / RECORD_FILE).read_text())["files"].items()
    except FileNotFoundError:
        return []
    except (ValueError, KeyError, TypeError, AttributeError):
        return [f"{RECORD_FILE} is damaged"]
    problems = []
    for name, wanted in files:
        file = folder / name
        if not file.is_file():
            problems.append(f"{name} is missing")
        elif facts(file) != wanted:
            problems.append(f"{name} has changed since it was exported")
    return problems


@torch.no_grad()
def _logits(ours: LoadedModel, theirs: Any, problems: list[str]) -> Record:
    """Over short rows, and over one as long as the model can read."""
    context, difference, largest, positions = ours.shape.context, 0.0, 0.0, 0
    for rows, length in ((ROWS, min(LENGTH, context)), (1, context)):
        tokens = _tokens(ours, rows, length)
        for one, other in _heads(ours, theirs, tokens):
            if one.shape != other.shape:
                problems.append(f"transformers gives logits of shape {list(other.shape)} and ours {list(one.shape)}")
                return {}
            if not (one.isfinite().all() and other.isfinite().all()):
                problems.append("the logits are not finite")
                return {}
            difference = max(difference, float((one - other).abs().max()))
            largest = max(largest, float(one.abs().max()))
        positions += tokens.numel()
    limit = TOLERANCE * max(1.0, largest)
    if difference > limit:
        problems.append(f"the logits differ by {difference:.3g}, and {limit:.3g} is allowed")
    return {"positions": positions, "largest_difference": difference, "largest": largest, "allowed": limit}


def _heads(ours: LoadedModel, theirs: Any, tokens: Tensor) -> list[tuple[Tensor, Tensor]]:
    """What both make of the tokens: of a masked model words and next sentence, its second half the second sentence."""
    if not isinstance(ours.model, Bert):
        return [(ours.model(tokens), theirs(tokens).logits)]
    segments = (torch.arange(tokens.shape[1]) >= tokens.shape[1] // 2).long().expand_as(tokens)
    found = theirs(tokens, token_type_ids=segments)
    words, following = ours.model.everywhere(tokens, segments)
    return [(words, found.prediction_logits), (following, found.seq_relationship_logits)]


@torch.no_grad()
def _likeliest(ours: LoadedModel, theirs: Any, problems: list[str]) -> Record:
    """Of a masked model, in place of greedy decoding: the word that each finds likeliest at every place."""
    tokens = _tokens(ours, ROWS, min(LENGTH, ours.shape.context))
    one, other = _heads(ours, theirs, tokens)[0]
    equal = torch.equal(one.argmax(-1), other.argmax(-1))
    if not equal:
        problems.append("the likeliest words are others")
    return {"places": tokens.numel(), "equal": equal}


@torch.no_grad()
def _greedy(ours: LoadedModel, theirs: Any, problems: list[str]) -> Record:
    number = min(GREEDY, ours.shape.context - 1)
    prompt = _tokens(ours, 1, max(1, min(PROMPT, ours.shape.context - number)))
    theirs.generation_config.eos_token_id = None  # an end token is a token like any other here
    equal = number == 0 or torch.equal(
        _decode(ours.model, prompt, number),
        theirs.generate(
            prompt,
            attention_mask=torch.ones_like(prompt),
            max_new_tokens=number,
            do_sample=False,
            pad_token_id=0,
        ),
    )
    if not equal:
        problems.append("greedy decoding gives other tokens")
    return {"tokens": number, "equal": equal}


def _decode(model: nn.Module, tokens: Tensor, number: int) -> Tensor:
    for _ in range(number):
        tokens = torch.cat([tokens, model(tokens)[:, -1:].argmax(-1)], dim=1)
    return tokens


def _texts(ours: LoadedTokenizer, theirs: Any, problems: list[str]) -> Record:
    """`unchanged` counts the texts that come back as they were: a tokenizer may normalise, ours no less than theirs."""
    before, unchanged = len(problems), 0
    for text in TEXTS:
        ids = ours.tokenizer.encode(text).ids
        back = ours.tokenizer.decode(ids, skip_special_tokens=False)
        unchanged += back == text
        if list(theirs(text)["input_ids"]) != ids:
            problems.append(f"transformers' tokenizer gives other ids for {text[:20]!r}")
        elif theirs.decode(ids, skip_special_tokens=False) != back:
            problems.append(f"transformers' tokenizer gives other text for the ids of {text[:20]!r}")
    if theirs.get_vocab() != ours.tokenizer.get_vocab(with_added_tokens=True):
        problems.append("transformers' tokenizer has another vocabulary")
    end = theirs.sep_token_id if ours.end == SEPARATOR else theirs.eos_token_id
    if end != ours.end_id:
        problems.append(f"transformers' tokenizer ends a document with {end}, ours with {ours.end_id}")
    return {"texts": len(TEXTS), "unchanged": unchanged, "equal": len(problems) == before}


def _tokens(ours: LoadedModel, rows: int, length: int) -> Tensor:
    assert ours.shape.vocab is not None
    return torch.randint(ours.shape.vocab, (rows, length), generator=torch.Generator().manual_seed(length))


def _first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


def main(folder: Path) -> int:
    record = check(folder)
    print(json.dumps(record))
    return CODES[record["verdict"]]


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
