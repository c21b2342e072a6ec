"""Measures the speed of `stoker prepare` against the tokenizers library, and its memory for small and large data.

    python bench/prepare.py [--pairs 5]    # 10 MB against 1 GB of text: about ten minutes on two cores
    python bench/prepare.py --quick        # 10 MB against 100 MB

Both sides use one core, the same text and the same tokenizer, and take turns; the library gets whole files in batches
of 1 MB. Memory is the sum over all processes of a `prepare` with two workers that also trains its tokenizer.
"""

import argparse
import os
import statistics
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from rich.console import Console
from rich.table import Table
from tokenizers import Tokenizer

from processes import tree
from stoker.data.prepare import prepare
from stoker.spec.data import Data, TrainTokenizer

MB = 10**6
SAMPLE_S = 0.02

CHILD = """
import sys
from pathlib import Path
from stoker.data.prepare import prepare
from stoker.spec.data import Data, TrainTokenizer
if __name__ == "__main__":
    prepare(Data(path=sys.argv[1], tokenizer=TrainTokenizer(train=8000)), Path(sys.argv[2]), workers=2)
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="100 MB instead of 1 GB")
    parser.add_argument("--pairs", type=int, default=5)
    args = parser.parse_args()
    large = 100 * MB if args.quick else 1000 * MB
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    table = Table("measurement", "value", "ratio", title="stoker prepare")
    with tempfile.TemporaryDirectory(prefix="stoker-bench-") as name:
        folder = Path(name)
        speeds = measure_speed(folder, pairs=args.pairs)
        best = max(speeds["encode_batch"], speeds["encode_batch_fast"])
        for method in ("encode_batch", "encode_batch_fast"):
            table.add_row(f"raw tokenizers, {method}", f"{speeds[method]:.2f} MB/s per core", "")
        table.add_row(
            "prepare, reading to index",
            f"{speeds['prepare']:.2f} MB/s per core",
            f"{speeds['prepare'] / speeds['encode_batch']:.2f}x encode_batch, {speeds['prepare'] / best:.2f}x the best",
        )
        small_peak, large_peak = (measure_memory(folder, size) for size in (10 * MB, large))
        table.add_row("peak memory, 10 MB of text", f"{small_peak / 2**20:.0f} MiB", "")
        table.add_row(
            f"peak memory, {large // MB} MB of text", f"{large_peak / 2**20:.0f} MiB", f"{large_peak / small_peak:.2f}x"
        )
    Console(width=120).print(table)


def measure_speed(folder: Path, *, pairs: int) -> dict[str, float]:
    """Median MB/s of each side."""
    texts = standard_library(10 * MB)
    data = folder / "speed"
    data.mkdir()
    for number, text in enumerate(texts):
        (data / f"{number:05d}.txt").write_bytes(text.encode())
    prepared = prepare(Data(path=str(data), tokenizer=TrainTokenizer(train=8000)), folder / "prepared")
    tokenizer_file, size = prepared.tokenizer / "tokenizer.json", sum(len(text.encode()) for text in texts) / MB
    times: dict[str, list[float]] = {"encode_batch": [], "encode_batch_fast": [], "prepare": []}
    for pair in range(pairs):
        for name in ("encode_batch", "encode_batch_fast"):
            encode = getattr(Tokenizer.from_file(str(tokenizer_file)), name)
            times[name].append(timed(partial(raw, encode, texts)))
        spec, out = Data(path=str(data), tokenizer=str(prepared.tokenizer)), folder / f"out-{pair}"
        times["prepare"].append(timed(partial(prepare, spec, out, workers=1)))
    return {name: size / statistics.median(seconds) for name, seconds in times.items()}


def raw(encode: Callable[[list[str]], object], texts: list[str]) -> None:
    batch: list[str] = []
    for text in texts:
        batch.append(text)
        if sum(map(len, batch)) >= MB:
            encode(batch)
            batch = []
    if batch:
        encode(batch)


def measure_memory(folder: Path, size: int) -> int:
    """Peak of the resident memory summed over all processes of a `prepare`."""
    data, script = folder / f"memory-{size}", folder / "child.py"
    data.mkdir()
    script.write_text(CHILD)
    text = "".join(standard_library(10 * MB)).encode()[: 10 * MB].decode(errors="ignore")
    for number in range(size // (10 * MB)):
        (data / f"{number:05d}.txt").write_text(text)
    process = subprocess.Popen([sys.executable, str(script), str(data), str(folder / f"tokens-{size}")])
    peak = 0
    while process.poll() is None:
        peak = max(peak, sum(resident(pid) for pid in tree(process.pid)))
        time.sleep(SAMPLE_S)
    assert process.returncode == 0
    return peak


def resident(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return 0


def standard_library(size: int) -> list[str]:
    """The source files of Python's standard library, repeated up to this many bytes."""
    files = sorted(Path(sysconfig.get_path("stdlib")).rglob("*.py"))
    texts: list[str] = []
    total = 0
    while total < size:
        for file in files:
            if "site-packages" in file.parts:
                continue
            try:
                texts.append(file.read_text(encoding="utf-8"))
            except UnicodeDecodeError:
                continue
            total += len(texts[-1])
            if total >= size:
                break
    return texts


def timed(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


if __name__ == "__main__":
    main()
