"""Compares BERT training with the Hugging Face Trainer and BertForPreTraining: same model, records, batch and cores.

Both run in bf16, compiled, without dropout, and take turns as in bench/train.py. `full` has sequences without padding;
in `half`, half of each sequence is padding on average. Speed counts real tokens.

    python bench/bert.py [--pairs 5] [--turn 20] [--only full|half] [--precision bf16|fp32]
"""

import argparse
import hashlib
import json
import statistics
import sys
import tempfile
from pathlib import Path

import numpy as np
from contest import Contestant, start, start_stoker

from stoker.data.bert.pairs import Fields, PairIndex, PairShard, join

SHAPE = {"layers": 6, "heads": 6, "width": 384}
VOCAB, SEQUENCES, LENGTH, PREDICTIONS, RATE = 8000, 32, 128, 20, 0.15
RECORDS = 20_000
LENGTHS = {"full": (LENGTH, LENGTH), "half": (16, 112)}  # shortest and longest
WANTED = {"full": 1.15, "half": 1.5}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--turn", type=float, default=20, help="seconds")
    parser.add_argument("--only", choices=LENGTHS, action="append")
    parser.add_argument("--precision", choices=("bf16", "fp32"), default="bf16")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder)
        print(f"{'rows':<8}{'stoker tok/s':>14}{'HF tok/s':>12}{'ratio':>8}{'wanted':>8}   ratios of the pairs")
        for name in args.only or LENGTHS:
            records = random_pairs(work / f"records-{name}", *LENGTHS[name])
            per_step = SEQUENCES * PairIndex.read(records).train[0].tokens / RECORDS
            turns = compare(name, records, work, args)
            speeds = [[(len(t) - 1) * per_step / (t[-1] - t[0]) for t in pair] for pair in turns]
            ours, theirs = (statistics.median(column) for column in zip(*speeds, strict=True))
            ratios = [a / b for a, b in speeds]
            shown = " ".join(f"{r:.3f}" for r in ratios)
            ratio = statistics.median(ratios)
            print(f"{name:<8}{ours:>14,.0f}{theirs:>12,.0f}{ratio:>8.3f}{WANTED[name]:>8}   {shown}", flush=True)


def compare(name: str, records: Path, work: Path, args: argparse.Namespace) -> list[list[list[float]]]:
    contestants = [_stoker(name, records, work, args.precision), _hugging_face(name, records, work, args.precision)]
    try:
        for contestant in contestants:
            contestant.warm_up()
        return [[side.turn(seconds=args.turn, steps=3) for side in contestants] for _ in range(args.pairs)]
    finally:
        for contestant in contestants:
            contestant.end()


def random_pairs(folder: Path, shortest: int, longest: int) -> Path:
    """Random records with masks. The speed of a step does not depend on the content."""
    folder.mkdir()
    draw = np.random.default_rng(0)
    real = draw.integers(shortest, longest + 1, RECORDS)
    inside = np.arange(LENGTH) < real[:, None]
    tokens = draw.integers(5, VOCAB, (RECORDS, LENGTH)) * inside
    number = np.clip(np.rint(real * RATE).astype(int), 1, PREDICTIONS)
    places = np.argsort(np.where(inside[:, 1:], draw.random((RECORDS, LENGTH - 1)), 2.0), axis=1)[:, :PREDICTIONS] + 1
    listed = np.arange(PREDICTIONS) < number[:, None]
    ids = draw.integers(5, VOCAB, (RECORDS, PREDICTIONS))
    rows = join(Fields(tokens, real, real // 2, draw.integers(2, size=RECORDS), places * listed, ids * listed))
    rows.astype("<u2").tofile(folder / "train-00000.bin")
    sha256 = hashlib.sha256(rows.astype("<u2").tobytes()).hexdigest()
    shard = PairShard(file="train-00000.bin", records=RECORDS, tokens=int(real.sum()), sha256=sha256)
    PairIndex(
        key=f"random-{shortest}-{longest}", dtype="uint16", vocab=VOCAB, end=0, tokenizer="", trained=None, documents=0,
        bytes=0, skipped=0, length=LENGTH, predictions=PREDICTIONS, train=[shard],
    ).write(folder)  # fmt: skip
    return folder


def _stoker(name: str, records: Path, work: Path, precision: str) -> Contestant:
    overrides = ["model.family=bert", *(f"model.{key}={value}" for key, value in SHAPE.items())]
    overrides += [
        f"model.context={LENGTH}",
        f"batch.length={LENGTH}",
        f"batch.sequences={SEQUENCES}",
        f"data={records}",
    ]
    overrides += [f"precision={precision}", "compile=true", "checkpoint.every=100000", "on.device=cpu"]
    return start_stoker(name, overrides, work)


def _hugging_face(name: str, records: Path, work: Path, precision: str) -> Contestant:
    times = work / f"hf-{name}.jsonl"
    settings: dict[str, object] = {
        "records": str(records),
        "out": str(work / "hf"),
        "times": str(times),
        "shape": SHAPE,
    }
    settings |= {"sequences": SEQUENCES, "bf16": precision == "bf16"}
    command = [sys.executable, str(Path(__file__).with_name("hf_bert.py")), json.dumps(settings)]
    return start("Hugging Face", command, times=times, log=work / f"hf-{name}.log")


if __name__ == "__main__":
    main()
