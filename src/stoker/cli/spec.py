"""The verbs about run files: schema, explain, init, presets."""

import json
import shlex
import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Sequence
from pathlib import Path

from rich.box import SIMPLE_HEAD
from rich.table import Table

from stoker.cli.console import SafeConsole
from stoker.cli.places import path
from stoker.spec.errors import UserError
from stoker.spec.keys import doc, flat, keys
from stoker.spec.load import Loaded, load
from stoker.spec.model import Model
from stoker.spec.presets import Preset, presets_of_both_kinds
from stoker.spec.problems import unknown_key
from stoker.spec.schema import run_schema
from stoker.spec.sizes import parameters
from stoker.spec.starter import look, starter

PUBLISHED_VOCAB = {"gpt2": 50257, "bert": 30522, "llama": 32000}
"""What the table counts with where a preset leaves the vocabulary to the tokenizer."""


def schema_arguments(parser: ArgumentParser) -> None:
    parser.epilog = "Point your editor at it: the first line of a run file, # yaml-language-server: $schema=FILE"


def schema(args: Namespace) -> int:
    del args
    print(json.dumps(run_schema(), indent=2))
    return 0


def explain_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("key", metavar="KEY", help="a key such as optim.lr, or a section such as optim")
    parser.add_argument("words", metavar="RUN.yaml [key=value …]", nargs="+", help="the run file and what overrules it")
    parser.add_argument("--json", action="store_true", help="print JSON")


def explain(args: Namespace) -> int:
    key: str = args.key
    first, *rest = args.words
    loaded = load(None, args.words) if "=" in first and not Path(first).exists() else load(Path(first), rest)
    below = [one for one in loaded.said if one == key or one.startswith(f"{key}.")]
    if not below and key not in keys():
        raise unknown_key(key, "stoker explain")
    if args.json:
        print(json.dumps([_as_json(one, loaded) for one in below], indent=2))
    elif below == [key]:
        print(_paragraph(key, loaded))
    else:
        print(doc(key))
        values = flat(loaded.spec)
        _table(("key", "value", "from"), [(one, _show(values[one]), str(loaded.origins[one])) for one in below])
    return 0


def init_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("data", metavar="DATA", nargs="+", help="files, folders or globs of your text")
    parser.add_argument("-o", "--out", metavar="FILE", type=path, default=Path("run.yaml"), help="default: run.yaml")


def init(args: Namespace) -> int:
    out: Path = args.out
    taken = UserError(f"{out} is there already", remedy="Choose another name with -o FILE, or move it away")
    if out.exists():
        raise taken
    text = starter(look(args.data), out)
    try:
        with open(out, "x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError:
        raise taken from None
    except OSError as e:
        raise UserError(f"cannot write {out}: {e.strerror}", remedy="Choose another place with -o FILE") from e
    spec = load(out, []).training
    print(f"wrote {out}: {spec.until.steps} steps of {spec.batch.sequences} x {spec.batch.length} tokens")
    print(f"next: stoker train {shlex.quote(str(out))}")
    return 0


def presets_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("name", metavar="NAME", nargs="?", help="print this preset's YAML")
    parser.add_argument("--json", action="store_true", help="print JSON")


def presets(args: Namespace) -> int:
    found = sorted(presets_of_both_kinds(args.name), key=lambda one: (one.kind, _size(one)))
    if args.json:
        print(json.dumps([_facts(one) | {"values": one.document.values} for one in found], indent=2))
    elif args.name:
        print("\n".join(f"# {one.kind} preset\n{one.path.read_text(encoding='utf-8')}" for one in found), end="")
    else:
        rows = [
            (one.name, one.kind, f"{_size(one) / 1e6:,.0f}M", f"{_vocab(_model(one)):,}", one.description)
            for one in found
        ]
        _table(("name", "kind", "parameters", "vocabulary", "description"), rows)
        print(
            "\nUse one: model=NAME or base=NAME, in the run file or as words. Parameters are with the vocabulary "
            "beside them; with a tokenizer of another size there are more or fewer."
        )
    return 0


def _facts(preset: Preset) -> dict[str, object]:
    return {
        "name": preset.name,
        "kind": preset.kind,
        "parameters": _size(preset),
        "vocab": _vocab(_model(preset)),
        "description": preset.description,
    }


def _size(preset: Preset) -> int:
    model = _model(preset)
    return parameters(model, _vocab(model))


def _model(preset: Preset) -> Model:
    if preset.kind == "model":
        return Model.model_validate(preset.document.values)
    needed = ["data=.", "objective.teacher=."]  # what no preset can know; neither changes the model
    return load(None, [f"base={preset.name}", *needed]).training.model


def _vocab(model: Model) -> int:
    return model.vocab or PUBLISHED_VOCAB[model.family]


def _as_json(key: str, loaded: Loaded) -> dict[str, object]:
    said = [{"value": one.value, "origin": str(one.origin)} for one in loaded.said[key]]
    return {
        "key": key,
        "value": flat(loaded.spec)[key],
        "origin": str(loaded.origins[key]),
        "said": said,
        "doc": doc(key),
    }


def _paragraph(key: str, loaded: Loaded) -> str:
    winner, *overruled = loaded.said[key]
    lines = [f"{key} = {_show(flat(loaded.spec)[key])}", f"  from {winner.origin}"]
    lines += [f"  overrules {_show(one.value)} from {one.origin}" for one in overruled]
    return "\n".join([*lines, f"  {doc(key)}"])


def _show(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, default=str)


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """On a terminal as wide as it is; elsewhere plain columns, for grep and cut."""
    if sys.stdout.isatty():
        table = Table(*head, box=SIMPLE_HEAD, pad_edge=False)
        for row in rows:
            table.add_row(*row)
        SafeConsole().print(table)
        return
    widths = [max(len(row[i]) for row in [head, *rows]) for i in range(len(head))]
    for row in [head, *rows]:
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())
