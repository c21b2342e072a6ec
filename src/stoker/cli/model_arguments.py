"""Arguments of the verbs whose code imports torch: `--help` and a wrong option are answered without it."""

import argparse

from stoker.cli.arguments import path, runs_argument, step_argument, trust_argument
from stoker.spec.errors import UserError
from stoker.spec.units import size


def generate_arguments(parser: argparse.ArgumentParser) -> None:
    _model_arguments(parser)
    parser.add_argument(
        "prompts", nargs="*", metavar="PROMPT", help="text to continue, or to fill in; without one, a new document"
    )
    parser.add_argument("--file", type=path, metavar="FILE", help="a file of prompts, one per line")
    parser.add_argument("--tokens", type=int, metavar="N", help="at most this many (200)")
    parser.add_argument("--temperature", type=float, metavar="T", help="0 always takes the most likely token (0.8)")
    parser.add_argument("--top-k", type=int, metavar="K", help="sample from the K most likely tokens")
    parser.add_argument(
        "--top-p", type=float, metavar="P", help="sample from the most likely tokens with a total probability of P (1)"
    )
    parser.add_argument("--seed", type=int, metavar="S", help="of the sampling (0)")
    parser.add_argument("--samples", type=int, metavar="N", help="texts per prompt (1)")
    parser.add_argument(
        "--stop", action="append", default=[], metavar="WORD", help="end a text at this word; may be repeated"
    )
    parser.add_argument("--json", action="store_true", help="print each text as a line of JSON")


def eval_arguments(parser: argparse.ArgumentParser) -> None:
    _model_arguments(parser)
    parser.add_argument(
        "--data", nargs="+", default=[], metavar="FILE", help="text or a prepared set (the run's held-out text)"
    )
    parser.add_argument(
        "--task",
        choices=("choice", "last-word"),
        help="--data has questions: choices between continuations, or last words",
    )
    parser.add_argument("--split", choices=("validation", "train"), help="which part of a prepared set (validation)")
    parser.add_argument("--sequences", type=int, metavar="N", help="this many, spread over the data (all)")
    parser.add_argument("--length", type=int, metavar="N", help="tokens in a sequence (the run's, or the context)")
    parser.add_argument("--json", action="store_true", help="print it as JSON")


def export_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", metavar="MODEL", help="a run's name or folder, or a checkpoint's folder")
    runs_argument(parser)
    step_argument(parser)
    parser.add_argument(
        "-o", "--out", metavar="DIR", help="where to put it: a folder, s3://… or gs://… (RUN/export/step-N)"
    )
    parser.add_argument("--dtype", choices=("fp32", "bf16", "fp16"), default="fp32", help="of the weights (fp32)")
    parser.add_argument("--shard-size", type=_size, metavar="SIZE", help="largest size of a weights file (5GB)")
    parser.add_argument("--require-proof", action="store_true", help="keep it only if transformers computes the same")
    trust_argument(parser)
    parser.add_argument("--push", metavar="REPO", help="upload it to the hub (HF_TOKEN, HF_ENDPOINT)")
    parser.add_argument("--json", action="store_true", help="print it as JSON")


def import_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "folder", type=path, metavar="FOLDER", help="with config.json, safetensors or .bin files, and tokenizer.json"
    )
    parser.add_argument("--name", required=True, metavar="NAME", help="name of the new run")
    runs_argument(parser)
    parser.add_argument("--json", action="store_true", help="print it as JSON")


def _model_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("where", metavar="WHERE", help="a run, a checkpoint's folder, or a Hugging Face folder")
    step_argument(parser)
    parser.add_argument("--tokenizer", metavar="DIR", help="a tokenizer to use instead of the model's own")
    parser.add_argument("--device", default="auto", metavar="X", help="cpu, cuda or auto (auto)")
    runs_argument(parser)
    trust_argument(parser)


def _size(text: str) -> int:
    try:
        shard_bytes = size(text)
    except ValueError as e:
        raise UserError(f"--shard-size {text}: {e}", remedy="") from e
    if shard_bytes < 1:
        raise UserError(f"--shard-size is {text}", remedy="Give a size, such as 5GB")
    return shard_bytes
