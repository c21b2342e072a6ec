"""Checks an exported folder against transformers, in a separate process.

    python -m stoker.inference.parity FOLDER        prints the record as JSON; 0 proven, 3 failed, 2 unproven

Both read the folder and compute in fp32, whatever its dtype: the logits of fixed tokens must agree to TOLERANCE of the
largest of them, greedy decoding must give the same tokens, and both tokenizers the same ids and text. A folder that has
a stoker.json must also hold the files that it lists, unchanged.
"""

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
from stoker.models.bert import Bert
from stoker.models.load import LoadedModel, load_model
from stoker.rundir import Record
from stoker.rundir.checkpoint import file_facts
from stoker.spec import contract
from stoker.spec.errors import UserError, first_line
from stoker.spec.hf_config import hf_format

RECORD_FILE = "stoker.json"
TOLERANCE = 1e-4  # fp32 sums in another order differ by about 1e-6 of the largest logit
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
    """Run the check in a new process, so that nothing in this process can affect it."""
    command = [sys.executable, "-m", "stoker.inference.parity", str(folder)]
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
        reason = f"transformers cannot be imported: {first_line(e)}"
        return _record("failed" if problems else "unproven", [*problems, reason])
    try:
        ours = load_model(folder, device="cpu")
        tokenizer = ours.read_tokenizer()
    except UserError as e:
        return _record("failed", [*problems, str(e)])
    try:
        model, notes = getattr(transformers, hf_format(ours.shape).auto).from_pretrained(
            folder, dtype=torch.float32, local_files_only=True, trust_remote_code=False, output_loading_info=True
        )
        theirs = tokenizer_class.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    except Exception as e:  # transformers can raise anything
        return _record("failed", [*problems, f"transformers cannot load it: {type(e).__name__}: {first_line(e)}"])
    for kind in ("missing_keys", "unexpected_keys", "mismatched_keys"):
        if notes.get(kind):
            problems.append(f"transformers reports {kind.replace('_', ' ')}: {sorted(notes[kind])[:5]}")
    model = model.eval()
    decoding = {"masked": _most_likely} if ours.shape.masked else {"greedy": _greedy}
    results = {
        "logits": _logits(ours, model, problems),
        **{name: compare(ours, model, problems) for name, compare in decoding.items()},
        "tokenizer": _texts(tokenizer, theirs, problems),
    }
    return _record("failed" if problems else "proven", problems) | results


def _record(verdict: str, problems: list[str]) -> Record:
    names = ("torch", "transformers", "tokenizers", "safetensors")
    loaded = {name: str(getattr(sys.modules.get(name), "__version__", "")) for name in names}
    versions = {"python": platform.python_version()} | {name: version for name, version in loaded.items() if version}
    return {"verdict": verdict, "problems": problems, "versions": versions}


def _changed(folder: Path) -> list[str]:
    """Files that differ from stoker.json, if it exists."""
    try:
        files = json.loads((folder / RECORD_FILE).read_text())["files"].items()
    except FileNotFoundError:
        return []
    except (ValueError, KeyError, TypeError, AttributeError):
        return [f"{RECORD_FILE} is damaged"]
    problems = []
    for name, recorded in files:
        file = folder / name
        if not file.is_file():
            problems.append(f"{name} is missing")
        elif file_facts(file) != recorded:
            problems.append(f"{name} has changed since it was exported")
    return problems


@torch.no_grad()
def _logits(ours: LoadedModel, theirs: Any, problems: list[str]) -> Record:
    """Over short rows, and over a row as long as the model's context."""
    context, difference, largest, positions = ours.shape.context, 0.0, 0.0, 0
    for rows, length in ((ROWS, min(LENGTH, context)), (1, context)):
        tokens = _tokens(ours, rows, length)
        for own, their in _heads(ours, theirs, tokens):
            if own.shape != their.shape:
                problems.append(f"transformers gives logits of shape {list(their.shape)} and ours {list(own.shape)}")
                return {}
            if not (own.isfinite().all() and their.isfinite().all()):
                problems.append("the logits are not finite")
                return {}
            difference = max(difference, float((own - their).abs().max()))
            largest = max(largest, float(own.abs().max()))
        positions += tokens.numel()
    limit = TOLERANCE * max(1.0, largest)
    if difference > limit:
        problems.append(f"the logits differ by {difference:.3g}, and {limit:.3g} is allowed")
    return {"positions": positions, "largest_difference": difference, "largest": largest, "allowed": limit}


def _heads(ours: LoadedModel, theirs: Any, tokens: Tensor) -> list[tuple[Tensor, Tensor]]:
    """Both models' logits. Of a masked model, words and next sentence; the second half is the second sentence."""
    if not isinstance(ours.model, Bert):
        return [(ours.model(tokens), theirs(tokens).logits)]
    segments = (torch.arange(tokens.shape[1]) >= tokens.shape[1] // 2).long().expand_as(tokens)
    output = theirs(tokens, token_type_ids=segments)
    word_logits, following = ours.model.everywhere(tokens, segments)
    return [(word_logits, output.prediction_logits), (following, output.seq_relationship_logits)]


@torch.no_grad()
def _most_likely(ours: LoadedModel, theirs: Any, problems: list[str]) -> Record:
    """For a masked model, instead of greedy decoding: the most likely word at every position."""
    tokens = _tokens(ours, ROWS, min(LENGTH, ours.shape.context))
    own, their = _heads(ours, theirs, tokens)[0]
    equal = torch.equal(own.argmax(-1), their.argmax(-1))
    if not equal:
        problems.append("the most likely words differ")
    return {"places": tokens.numel(), "equal": equal}


@torch.no_grad()
def _greedy(ours: LoadedModel, theirs: Any, problems: list[str]) -> Record:
    number = min(GREEDY, ours.shape.context - 1)
    prompt = _tokens(ours, 1, max(1, min(PROMPT, ours.shape.context - number)))
    theirs.generation_config.eos_token_id = None  # the end token does not stop it here
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
    """`unchanged` counts the texts that survive encoding and decoding: a tokenizer may normalise."""
    before, unchanged = len(problems), 0
    for text in TEXTS:
        ids = ours.tokenizer.encode(text).ids
        decoded = ours.tokenizer.decode(ids, skip_special_tokens=False)
        unchanged += decoded == text
        if list(theirs(text)["input_ids"]) != ids:
            problems.append(f"transformers' tokenizer gives other ids for {text[:20]!r}")
        elif theirs.decode(ids, skip_special_tokens=False) != decoded:
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


def main(folder: Path) -> int:
    record = check(folder)
    print(json.dumps(record))
    return CODES[record["verdict"]]


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
