"""`stoker export`: write a model as a folder that transformers loads, and check that both compute the same."""

import argparse
import json
import shlex

from stoker.cli import output
from stoker.cli.arguments import model_path
from stoker.inference.atomic_folder import require_free
from stoker.inference.export import SHARD_BYTES, Exported, default_folder
from stoker.inference.export import export as write
from stoker.inference.hub import push, require_hub
from stoker.models.load import load_model
from stoker.spec import contract
from stoker.storage.mirror import keep, outgoing
from stoker.storage.store import is_url

VERDICTS = {
    "proven": "proven: transformers computes the same as Stoker",
    "failed": "NOT the same as Stoker computes",
    "unproven": "unproven",
}


def export(args: argparse.Namespace) -> int:
    if args.push:
        require_hub(args.push)
    with outgoing(args.out) as out:
        if out:
            require_free(out)
        loaded = load_model(model_path(args.model, args.runs), step=args.step, device="cpu")
        exported = write(
            loaded,
            (out or default_folder(loaded)).absolute(),
            dtype=args.dtype,
            shard_bytes=args.shard_size or SHARD_BYTES,
            require_proof=args.require_proof,
            report=(lambda _: None) if args.json else (lambda line: print(f"{line} …", flush=True)),
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
        rows.append(("masked", f"{record['masked']['places']} predicted words, {_equal(record['masked']['equal'])}"))
    if "tokenizer" in record:
        rows.append(("tokenizer", f"{record['tokenizer']['texts']} texts, {_equal(record['tokenizer']['equal'])}"))
    rows.append(("verdict", VERDICTS[exported.verdict]))
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
