"""The model that a verb works with, and its tokenizer, as such verbs take them."""

import argparse

from stoker.cli.places import model_place, runs_argument, step_argument
from stoker.data.tokenizer import LoadedTokenizer, load
from stoker.spec.errors import UserError
from stoker.train.load import LoadedModel, load_model


def model_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("where", metavar="WHERE", help="a run, a checkpoint's folder, or a Hugging Face folder")
    step_argument(parser)
    parser.add_argument("--tokenizer", metavar="DIR", help="a tokenizer in place of the model's own")
    parser.add_argument("--device", default="auto", metavar="X", help="cpu, cuda or auto (auto)")
    runs_argument(parser)


def open_model(args: argparse.Namespace) -> LoadedModel:
    return load_model(model_place(args.where, args.runs), step=args.step, device=args.device)


def open_tokenizer(args: argparse.Namespace, loaded: LoadedModel) -> LoadedTokenizer:
    if args.tokenizer or loaded.tokenizer:
        return load(args.tokenizer or str(loaded.tokenizer))
    raise UserError(
        f"{loaded.origin} has no tokenizer", remedy="Name the one that it was trained with: --tokenizer DIR"
    )
