"""`stoker export`: a model as a folder that transformers loads, checked against it."""

import argparse
import json
import shlex

from stoker.cli import output
from stoker.cli.places import model_place, runs_argument, step_argument, trust_argument
from stoker.spec import contract
from stoker.spec.errors import UserError
from stoker.spec.units import size
from stoker.storage.mirror import keep, outgoing
from stoker.storage.store import is_url
from stoker.train.export import SHARD_BYTES, Exported, default_folder
from stoker.train.export import export as write
from stoker.train.folders import require_free
from stoker.train.hub import push, require_hub
from stoker.train.load import load_model

WORDS = {
    "proven": "proven: transformers computes what Stoker does",
    "failed": "NOT what Stoker computes",
    "unproven": "unproven",
}


def export_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", metavar="MODEL", help="a run's name or folder, or a checkpoint's folder")
    runs_argument(parser)
    step_argument(parser)
    parser.add_argument(
        "-o", "--out", metavar="DIR", help="where to put it: a folder, s3://… or gs://… (RUN/export/step-N)"
    )
    parser.add_argument("--dtype", choices=("fp32", "bf16", "fp16"), default="fp32", help="of the weights (fp32)")
    parser.add_argument(
        "--shard-size", type=_size, default=SHARD_BYTES, metavar="SIZE", help="most bytes of tensors in a file (5GB)"
    )
    parser.add_argument("--require-proof", action="store_true", help="keep it only if transformers computes the same")
    trust_argument(parser)
    parser.add_argument("--push", metavar="REPO", help="upload it to the hub (HF_TOKEN, HF_ENDPOINT)")
    parser.add_argument("--json", action="store_true", help="print it as JSON")


def export(args: argparse.Namespace) -> int:
    if args.push:
        require_hub(args.push)
    with outgoing(args.out) as out:
        if out:
            require_free(out)
        loaded = load_model(model_place(args.model, args.runs), step=args.step, device="cpu")
        exported = write(
            loaded,
            (out or default_folder(loaded)).absolute(),
            dtype=args.dtype,
            shard_bytes=args.shard_size,
            require_proof=args.require_proof,
            say=(lambda _: None) if args.json else (lambda line: print(f"{line} …", flush=True)),
        )
        failed = exported.verdict == "failed"
        pushed = push(exported.folder, args.push) if args.push and not failed else None
    kept = args.out if args.out and is_url(args.out) else keep(exported.folder)
    if args.json:
        print(json.dumps({"folder": kept, "pushed": pushed} | exported.record))
    else:
        print(output.pairs(_rows(exported, kept, pushed)))
    return contract.EXIT_FAILED if failed else contract.EXIT_DONE


def _rows(exported: Exported, kept: str, pushed: str | None) -> list[tuple[str, str]]:
    record = exported.record
    files = record["files"]
    rows = [("files", f"{len(files) + 1}, {output.size(sum(facts['bytes'] for facts in files.values()))}")]
    if record.get("logits"):
        rows.append(("logits", f"differ by {record['logits']['largest_difference']:.2g} at most"))
    if "greedy" in record:
        rows.append(("greedy", f"{record['greedy']['tokens']} tokens, {_equal(record['greedy']['equal'])}"))
    if "masked" in record:
        rows.append(("masked", f"{record['masked']['places']} likeliest words, {_equal(record['masked']['equal'])}"))
    if "tokenizer" in record:
        rows.append(("tokenizer", f"{record['tokenizer']['texts']} texts, {_equal(record['tokenizer']['equal'])}"))
    rows.append(("verdict", WORDS[exported.verdict]))
    rows += [("problem", output.printable(problem)) for problem in record["problems"]]
    if exported.verdict == "unproven":
        rows.append(("prove it", "pip install 'stoker[hf]', and export it again"))
    rows.append(("folder", kept))
    if pushed:
        rows.append(("pushed", pushed))
    if exported.folder.exists():
        rows.append(("next", f"stoker generate {shlex.quote(str(exported.folder))}"))
    return rows


def _equal(equal: bool) -> str:
    return "the same" if equal else "NOT the same"


def _size(text: str) -> int:
    try:
        found = size(text)
    except ValueError as e:
        raise UserError(f"--shard-size {text}: {e}", remedy="") from e
    if found < 1:
        raise UserError(f"--shard-size is {text}", remedy="Give some bytes, such as 5GB")
    return found
