"""The model that a verb works with, and its tokenizer, as such verbs take them."""

import argparse

from stoker.cli.places import model_place, runs_argument, step_argument, trust_argument
from stoker.data.pairs import AnySet
from stoker.data.tokenizer import TOKENIZER_FILE, LoadedTokenizer, load, load_folder
from stoker.spec.errors import UserError
from stoker.train.load import LoadedModel, load_model


def model_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("where", metavar="WHERE", help="a run, a checkpoint's folder, or a Hugging Face folder")
    step_argument(parser)
    parser.add_argument("--tokenizer", metavar="DIR", help="a tokenizer in place of the model's own")
    parser.add_argument("--device", default="auto", metavar="X", help="cpu, cuda or auto (auto)")
    runs_argument(parser)
    trust_argument(parser)


def open_model(args: argparse.Namespace) -> LoadedModel:
    return load_model(model_place(args.where, args.runs), step=args.step, device=args.device)


def open_tokenizer(args: argparse.Namespace, loaded: LoadedModel) -> LoadedTokenizer:
    if args.tokenizer or loaded.tokenizer:
        return load(args.tokenizer or str(loaded.tokenizer))
    raise UserError(
        f"{loaded.origin} has no tokenizer", remedy="Name the one that it was trained with: --tokenizer DIR"
    )


def length_of(args: argparse.Namespace, loaded: LoadedModel) -> int:
    """Tokens in a sequence: as asked, as the run's, or all that the model reads."""
    context = loaded.shape.context
    length: int = args.length or (loaded.run.spec().batch.length if loaded.run else context)
    if length > context:
        raise UserError(
            f"--length is {length}, and the model reads {context} tokens at most", remedy=f"Give {context} or less"
        )
    return length


def has_tokenizer(found: AnySet) -> bool:
    return (found.tokenizer / TOKENIZER_FILE).is_file()


def refuse_other_tokenizer(name: str, found: AnySet, args: argparse.Namespace, loaded: LoadedModel) -> None:
    """Its figures would mean nothing."""
    if not has_tokenizer(found) or not (args.tokenizer or loaded.tokenizer):
        return
    if open_tokenizer(args, loaded).tokenizer.get_vocab() != load_folder(found.tokenizer).tokenizer.get_vocab():
        raise UserError(
            f"{name} was prepared with another tokenizer than the model's", remedy="Name the text itself: --data FILE"
        )
