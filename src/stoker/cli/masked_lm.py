"""`stoker eval` and `stoker generate` for masked models, such as BERT."""

import argparse
import json

from stoker.api.evaluation import masked_evaluation_data, open_tokenizer, show_nothing
from stoker.cli import output
from stoker.cli.progress.counting import show_count
from stoker.cli.progress.preparing import show_preparing
from stoker.inference.evaluate import MaskedScore, evaluate_masked, precision_of
from stoker.inference.fill_mask import fill
from stoker.models.load import LoadedModel
from stoker.spec import contract
from stoker.spec.run import Objective
from stoker.spec.units import short_duration


def eval_masked(args: argparse.Namespace, loaded: LoadedModel) -> int:
    precision = precision_of(loaded)
    run_spec = loaded.run.spec() if loaded.run else None
    data = masked_evaluation_data(
        loaded,
        args.data,
        split=args.split,
        tokenizer=args.tokenizer,
        length=args.length,
        show=show_nothing if args.json else show_preparing,
    )
    with data as (name, pairs, split), show_count("evaluating", "sequences") as progress:
        score = evaluate_masked(
            loaded.model,
            pairs,
            split,
            run_spec.objective if run_spec else Objective(),
            seed=run_spec.seed if run_spec else 0,
            sequences=args.sequences,
            precision=precision,
            progress=progress,
        )
        length = pairs.index.length
    if args.json:
        head = {"model": loaded.origin, "step": loaded.step, "data": name, "length": length, "precision": precision}
        print(json.dumps(head | _figures(score)))
    else:
        rows = [("model", loaded.origin), ("data", f"{name}: {score.sequences:,} pairs of up to {length} tokens")]
        print(output.pairs([*rows, *_rows(score), ("precision", precision)]))
    return contract.EXIT_DONE


def fill_masked(args: argparse.Namespace, loaded: LoadedModel, prompts: list[str]) -> int:
    for filled in fill(loaded, open_tokenizer(loaded, args.tokenizer).tokenizer, prompts):
        if args.json:
            masks = [
                [{"word": word, "probability": probability} for word, probability in choices]
                for choices in filled.choices
            ]
            print(json.dumps({"prompt": filled.prompt, "text": filled.text, "masks": masks}))
        else:
            print(output.printable(filled.text))
    return contract.EXIT_DONE


def _figures(score: MaskedScore) -> dict[str, float | int]:
    return {
        "loss": score.loss,
        **score.parts,
        "word_accuracy": score.word_accuracy,
        "next_sentence_accuracy": score.next_accuracy,
        "sequences": score.sequences,
        "tokens": score.tokens,
        "masked_words": score.words,
        "seconds": round(score.seconds, 3),
    }


def _rows(score: MaskedScore) -> list[tuple[str, str]]:
    mlm, nsp = score.parts.values()
    return [
        ("loss", f"{score.loss:.4f}: {mlm:.4f} for masked words, {nsp:.4f} for next sentences"),
        ("words", f"{score.word_accuracy:.1%} of {score.words:,} masked words predicted correctly"),
        ("sentences", f"{score.next_accuracy:.1%} of {score.sequences:,} next sentences classified correctly"),
        ("time", f"{short_duration(score.seconds)}, {score.tokens:,} tokens"),
    ]
