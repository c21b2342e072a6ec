"""`stoker presets`: list the built-in models and runs."""

import json
from argparse import ArgumentParser, Namespace

from stoker.cli.console import print_table
from stoker.spec.estimate import parameters
from stoker.spec.load import load
from stoker.spec.model import Model
from stoker.spec.presets import Preset, presets_of_both_kinds

PUBLISHED_VOCAB = {"gpt2": 50257, "bert": 30522, "llama": 32000}
"""The vocabulary that the table uses if a preset leaves it to the tokenizer."""


def presets_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("name", metavar="NAME", nargs="?", help="print this preset's YAML")
    parser.add_argument("--json", action="store_true", help="print JSON")


def presets(args: Namespace) -> int:
    chosen = sorted(presets_of_both_kinds(args.name), key=lambda preset: (preset.kind, _size(preset)))
    if args.json:
        print(json.dumps([_facts(preset) | {"values": preset.document.values} for preset in chosen], indent=2))
    elif args.name:
        texts = [f"# {preset.kind} preset\n{preset.path.read_text(encoding='utf-8')}" for preset in chosen]
        print("\n".join(texts), end="")
    else:
        rows = [
            (
                preset.name,
                preset.kind,
                f"{_size(preset) / 1e6:,.0f}M",
                f"{_vocab(_model(preset)):,}",
                preset.description,
            )
            for preset in chosen
        ]
        print_table(("name", "kind", "parameters", "vocabulary", "description"), rows)
        print(
            "\nUse one with model=NAME or base=NAME, in the run file or on the command line. The number of parameters "
            "is for the vocabulary beside it, and differs with a tokenizer of another size."
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
    needed = ["data=.", "objective.teacher=."]  # required, not part of any preset, and without effect on the model
    return load(None, [f"base={preset.name}", *needed]).training.model


def _vocab(model: Model) -> int:
    return model.vocab or PUBLISHED_VOCAB[model.family]
