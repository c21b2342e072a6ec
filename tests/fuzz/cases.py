"""One hostile case of each kind for each number: a folder, and a command to run in it."""

import gzip
import json
import os
import random
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import yaml
import zstandard

from stoker.cli.main import VERBS
from stoker.rundir import RunDir
from tests.fuzz import checkpoints, hostile
from tests.fuzz.base import Base, worker
from tests.fuzz.runner import MARKER, Case

HOSTILE_MODULE = f"open({MARKER!r}, 'w')\n"
READERS = [
    ["ps"], ["ps", "--json"], ["status"], ["status", "tale"], ["status", "tale", "--json"], ["why", "tale"],
    ["why", "tale", "--facts"], ["events", "tale"], ["events", "tale", "--json"], ["logs", "tale"],
    ["logs", "tale", "--all"], ["logs", "tale", "--json"], ["logs", "tale", "--rank", "0", "--tail", "3"],
    ["top", "tale"], ["env", "tale"], ["audit", "tale"], ["audit", "tale", "--json"],
    ["replay", "tale", "--step", "2", "--no-loss"], ["stop", "tale"], ["launch", "tale", "--dry-run"],
    ["scale", "tale", "2"], ["completion", "bash"],
]  # fmt: skip
USERS = [
    ["generate", "tale", "It", "--tokens", "4"], ["eval", "tale", "--sequences", "2"],
    ["export", "tale", "-o", "out"], ["replay", "tale", "--step", "3"], ["audit", "tale"], ["generate", "runs/tale"],
    ["generate", "runs/tale/checkpoints/step-000000004", "It", "--tokens", "4"], ["eval", "tale", "--step", "best"],
]  # fmt: skip


def build(kind: str, number: int, seed: int, base: Base, folder: Path) -> Case:
    draw = random.Random(f"{seed}/{kind}/{number}")
    for name in ("work", "outside", "home"):
        (folder / name).mkdir(parents=True)
    (folder / "outside" / "secret").write_text(f"a secret of another user {hostile.ESCAPE}\n")
    (folder / "work" / "hostile.py").write_text(HOSTILE_MODULE)
    home = str(folder / "home")
    environment = {
        "HOME": home, "XDG_CACHE_HOME": f"{home}/cache", "XDG_CONFIG_HOME": f"{home}/config",
        "XDG_STATE_HOME": f"{home}/state", "KUBECONFIG": f"{home}/kubeconfig", "TERM": "xterm-256color",
        "HF_HUB_OFFLINE": "1", "AWS_EC2_METADATA_DISABLED": "true", "PYTHONFAULTHANDLER": "1",
    }  # fmt: skip
    fields = KINDS[kind](draw, base, folder)
    return Case(
        kind=kind, number=number, folder=folder, environment=environment | fields.pop("environment", {}),
        terminal=draw.random() < 0.4, **fields,
    )  # fmt: skip


def run_directory(draw: random.Random, base: Base, folder: Path) -> dict[str, Any]:
    run = _copied_run(base, folder)
    names = draw.sample(RECORDS, draw.choice([1, 1, 2, 4]))
    change = "; ".join(_spoil_record(draw, run, name, folder / "outside") for name in names)
    if draw.random() < 0.12:
        return {"description": f"resume with {change}", "call": lambda: worker(RunDir(run))}
    argv = draw.choice(READERS if draw.random() < 0.75 else USERS)
    return {"description": f"{' '.join(argv)} with {change}", "argv": argv}


def checkpoint(draw: random.Random, base: Base, folder: Path) -> dict[str, Any]:
    run = _copied_run(base, folder)
    newest = run / "checkpoints" / "step-000000004"
    changes = [checkpoints.spoil] * 5 + [checkpoints.spoil_manifest, checkpoints.spoil_files, checkpoints.spoil_folder]
    change = draw.choice(changes)(draw, newest, folder / "outside")
    if draw.random() < 0.2:
        return {"description": f"resume with {change}", "call": lambda: worker(RunDir(run))}
    argv = draw.choice(USERS)
    return {"description": f"{' '.join(argv)} with {change}", "argv": argv}


def run_file(draw: random.Random, base: Base, folder: Path) -> dict[str, Any]:
    document = {
        "name": "tale",
        "model": draw.choice(["gpt2-micro", {"layers": 1, "heads": 2, "width": 16, "context": 16}]),
        "data": {"path": str(base.data / "book.txt"), "tokenizer": {"train": 300}, "validation": 0.05},
        "batch": {"sequences": 2, "length": 16},
        "optim": {"lr": 1e-3, "schedule": "cosine", "warmup": "2%"},
        "until": {"steps": 4},
        "on": draw.choice(
            [
                {"workers": 1, "device": "cpu"},
                {"kind": "kubernetes", "nodes": "1..2", "workers": 2, "volume": "v", "image": "i"},
            ]
        ),
    }
    path = folder / "work" / "run.yaml"
    text = yaml.safe_dump(_plain(hostile.changed(draw, document, draw.choice([1, 2, 5])))).encode()
    text = text.replace(hostile.DIGITS.encode(), b"9" * 5000).replace(hostile.DEEP.encode(), b"[" * 3000 + b"]" * 3000)
    kind = draw.random()
    change = "values"
    if kind < 0.15:
        text, change = hostile.changed_bytes(draw, text), "bytes"
    elif kind < 0.3:
        text, change = draw.choice(YAML_BOMBS), "a bomb"
    path.write_bytes(text)
    if draw.random() < 0.05:
        hostile.replace_file(draw, path, folder / "outside")
        change = "another kind of file"
    argv = draw.choice(
        [
            ["train", "run.yaml", "--dry-run"], ["train", "run.yaml", "--dry-run"], ["launch", "run.yaml", "--dry-run"],
            ["explain", "optim.lr", "run.yaml"], ["explain", "model", "run.yaml"], 
            ["explain", "on", "run.yaml", "--json"],
            ["image", "build", "run.yaml"], ["import-config", "pytorchjob", "run.yaml"],
            ["import-config", "elasticjob", "run.yaml"], ["import-config", "torchx", "run.yaml"],
        ]
    )  # fmt: skip
    if argv[0] == "import-config" and draw.random() < 0.7 and path.is_file():
        path.write_bytes(_manifest(draw))
        change = "a manifest"
    return {"description": f"{' '.join(argv)} with {change}", "argv": argv}


def data_file(draw: random.Random, base: Base, folder: Path) -> dict[str, Any]:
    source = draw.choice(sorted(base.data.iterdir()))
    path = folder / "work" / (source.name if draw.random() < 0.85 else f"{hostile.ESCAPE}{source.name}")
    shutil.copy(source, path)
    change = _spoil_data(draw, path, folder / "outside")
    if draw.random() < 0.1:
        shutil.copytree(base.run, folder / "work" / "runs" / "tale")
        argv = draw.choice([["eval", "tale", "--data", str(path)], ["generate", "tale", "--file", str(path)]])
        return {"description": f"{argv[0]} with {source.name}: {change}", "argv": argv}
    flag = ["--skip-bad"] if draw.random() < 0.3 else []
    argv = draw.choice(
        [
            ["prepare", str(path), "-o", "set", "--tokenizer", "300", "--workers", "1", *flag],
            ["prepare", str(path), "-o", "set", "--tokenizer", "300", "--workers", "1", *flag],
            ["init", str(path)],
            ["train", "--dry-run", f"data.path={path}", "data.tokenizer=300", "model=gpt2-micro"],
        ]
    )
    return {"description": f"{argv[0]} {source.name}: {change}", "argv": argv}


def model_folder(draw: random.Random, base: Base, folder: Path) -> dict[str, Any]:
    """A folder in the format of transformers."""
    path = folder / "work" / "model"
    shutil.copytree(base.export, path)
    file = draw.choice(sorted(p for p in path.iterdir() if p.is_file()))
    kind = draw.random()
    if kind < 0.2:
        hostile.replace_file(draw, file, folder / "outside")
    elif file.suffix == ".json" and kind < 0.8:
        file.write_bytes(hostile.as_json(hostile.changed(draw, json.loads(file.read_text()), draw.choice([1, 2, 4]))))
    elif file.suffix == ".safetensors" and kind < 0.8:
        content = file.read_bytes()
        length = int.from_bytes(content[:8], "little")
        header = json.loads(content[8 : 8 + length])
        header = hostile.as_json(hostile.changed(draw, header, draw.choice([1, 2])))
        size = draw.choice([len(header)] * 4 + [2**40, 0, 2**63])
        file.write_bytes(size.to_bytes(8, "little") + header + content[8 + length :])
    else:
        file.write_bytes(hostile.changed_bytes(draw, file.read_bytes()))
    argv = draw.choice(
        [
            ["import", "model", "--name", "new"], ["generate", "model", "It", "--tokens", "4"],
            ["eval", "model", "--data", str(base.data / "book.txt"), "--sequences", "2"],
            ["train", "--dry-run", *base.overrides(), "name=child", "init=model"],
        ]
    )  # fmt: skip
    return {"description": f"{argv[0]} with {file.name}", "argv": argv}


def command_line(draw: random.Random, base: Base, folder: Path) -> dict[str, Any]:
    _copied_run(base, folder)
    if draw.random() < 0.12:
        return _new_process(draw, folder)
    verb = draw.choice([name for name in VERBS if name not in ("check", "net", "addon", "shell", "cp")])
    if draw.random() < 0.35:
        key = draw.choice(KEYS)
        argv = ["train", "--dry-run", *base.overrides(), f"name=n{draw.randrange(9)}", f"{key}={_word(draw)}"]
    else:
        words = [_word(draw) for _ in range(draw.choice([0, 1, 1, 2, 3]))]
        options = [word for _ in range(draw.choice([0, 1, 2])) for word in (draw.choice(OPTIONS), _word(draw))]
        argv = [verb, *(["tale"] if draw.random() < 0.5 else []), *options, *words]
        if verb in ("train", "launch"):
            argv.append("--dry-run")
        if verb in ("logs", "events") or "--watch" in argv:
            argv = [word for word in argv if word not in ("-f", "--follow", "--watch")]
    return {"description": " ".join(argv)[:200], "argv": argv}


KINDS: dict[str, Callable[[random.Random, Base, Path], dict[str, Any]]] = {
    "run-directory": run_directory,
    "checkpoint": checkpoint,
    "run-file": run_file,
    "data-file": data_file,
    "model-folder": model_folder,
    "command-line": command_line,
}

KEYS = [
    "seed", "model", "model.layers", "model.width", "model.vocab", "model.family", "data", "data.path",
    "data.tokenizer",
    "data.validation", "batch.sequences", "batch.length", "batch.micro", "optim.lr", "optim.warmup", "optim.schedule",
    "until.steps", "until.tokens", "until.time", "checkpoint.every", "checkpoint.keep", "checkpoint.resume",
    "eval.every",
    "log.every", "on", "on.workers", "on.nodes", "on.device", "on.kind", "env", "env.X", "secrets", "callbacks", "init",
    "objective", "objective.teacher", "precision", "compile", "name", "base", "script", "", ".", "a.b.c.d", "\x1b[31m",
]  # fmt: skip
OPTIONS = [
    "--runs", "--step", "--rank", "--tail", "--since", "--data", "--samples", "--tokens", "--temperature", "--top-k",
    "--top-p", "--seed", "--file", "--tokenizer", "--device", "-o", "--name", "--field", "--validation", "--workers",
    "--pairs", "--dtype", "--shard-size", "--length", "--sequences", "--task", "--json", "--all", "--set", "--base",
]  # fmt: skip
YAML_BOMBS = [
    b"a: &a [x,x,x,x,x,x,x,x,x]\n" + b"".join(
        b"%c: &%c [%s]\n" % (98 + i, 98 + i, b",".join([b"*%c" % (97 + i)] * 9)) for i in range(9)
    ) + b"name: *j\n",
    b"name: &a [*a]\n",
    b"name: " + b"[" * 20_000,
    b"name: " + b"{a: " * 5000,
    b"- " * 20_000,
    b"name: !!python/object/apply:os.system ['touch EXECUTED']\n",
    b"!!python/object/new:os.system ['touch EXECUTED']\n",
    b"name: " + b"9" * 100_000 + b"\n",
    b"name: 1:" + b"59:" * 5000 + b"1\n",
    b"? " * 3000 + b"\n",
    b"name: !!binary " + b"A" * 100_000 + b"=\n",
    b"name: 0x" + b"f" * 100_000 + b"\n",
    b"<<: " * 2000 + b"\n",
    b"a: &a {x: 1}\n<<: [*a, *a, 7]\n",
    b"name: 2026-99-99\n",
    b"name: 0000-00-00T99:99:99Z\n",
    b"\xff\xfe\x00\x00name",
    b"\x00" * 100_000,
    b"name: '\x1b]0;hijacked\x07'\n\x1b]0;hijacked\x07: 1\n",
    b"%YAML 9.9\n---\nname: x\n",
    b"name: x\n---\nname: y\n",
    b"? [a, b]\n: 1\n",
    b"{[1]: 2}\n",
    b"script: /dev/zero\n",
]  # fmt: skip


def _copied_run(base: Base, folder: Path) -> Path:
    return Path(shutil.copytree(base.run, folder / "work" / "runs" / "tale"))


RECORDS = [
    "spec.yaml", "metrics.jsonl", "events.jsonl", "exit.json", "data.json", "origins.json", "lock", "place.json",
    "seen.json", "ledger", "logs", "checkpoints", "tokenizer",
]  # fmt: skip


def _spoil_record(draw: random.Random, run: Path, name: str, outside: Path) -> str:
    path = run / name
    if path.is_dir():
        inner = sorted(p for p in path.rglob("*") if p.is_file())
        path = draw.choice(inner) if inner and draw.random() < 0.8 else path
    if draw.random() < 0.25 or path.is_dir():
        hostile.replace_file(draw, path, outside)
    elif not path.exists():
        path.write_bytes(hostile.as_json(hostile.changed(draw, DOCUMENTS.get(name, {}), draw.choice([0, 1, 2]))))
    elif path.suffix == ".jsonl" and draw.random() < 0.8:
        _spoil_lines(draw, path)
    elif path.suffix == ".json" and draw.random() < 0.8:
        path.write_bytes(hostile.as_json(hostile.changed(draw, json.loads(path.read_text()), draw.choice([1, 2]))))
    elif path.suffix == ".yaml" and draw.random() < 0.8:
        document = hostile.changed(draw, yaml.safe_load(path.read_text()), draw.choice([1, 1, 3]))
        if draw.random() < 0.25 and isinstance(document, dict):
            document["model"] = {"family": draw.choice(["hostile:Model", "hostile:run"]), "vocab": 300}
        path.write_text(yaml.safe_dump(_plain(document)))
    else:
        path.write_bytes(hostile.changed_bytes(draw, path.read_bytes()))
    return str(path.relative_to(run))


DOCUMENTS: dict[str, Any] = {
    "place.json": {
        "kind": "kubernetes", "context": None, "namespace": "n", "job": "j", "run": "tale", "volume": "v", "image": "i",
    },
    "seen.json": {"asked": 0.0, "view": {"state": "running", "reason": "", "remedy": "", "step": 3}},
    "origins.json": {"init": {"path": "/nowhere", "step": 3, "key": "k"}},
    "exit.json": {"state": "done", "code": 0, "step": 4, "reason": "", "remedy": "", "rank": None},
    "lock": {"pid": 1, "host": "h", "time": 0.0},
}  # fmt: skip


def _spoil_lines(draw: random.Random, path: Path) -> None:
    lines = path.read_bytes().splitlines() or [b"{}"]
    for _ in range(draw.choice([1, 3])):
        position = draw.randrange(len(lines))
        try:
            document = json.loads(lines[position])
        except (ValueError, RecursionError):  # a line that was changed before
            document = {}
        line = hostile.as_json(hostile.changed(draw, document, draw.choice([1, 2])))
        lines.insert(position, line) if draw.random() < 0.5 else lines.__setitem__(position, line)
    if draw.random() < 0.2:
        lines.insert(draw.randrange(len(lines)), hostile.changed_bytes(draw, lines[0]))
    path.write_bytes(b"\n".join(lines) + b"\n")


def _spoil_data(draw: random.Random, path: Path, outside: Path) -> str:
    kind = draw.random()
    if kind < 0.15:
        hostile.replace_file(draw, path, outside)
        return "another kind of file"
    name = path.name
    if kind < 0.5:
        path.write_bytes(hostile.changed_bytes(draw, path.read_bytes()))
        return "bytes"
    if name.endswith((".jsonl", ".jsonl.zst")):
        text = zstandard.decompress(path.read_bytes()) if name.endswith(".zst") else path.read_bytes()
        lines = text.splitlines()
        for _ in range(draw.choice([1, 5])):
            document = hostile.changed(draw, {"text": "It was a day.", "id": 1})
            lines[draw.randrange(len(lines))] = hostile.as_json(document, ensure_ascii=draw.random() < 0.5)
        text = b"\n".join(lines)
        path.write_bytes(zstandard.compress(text) if name.endswith(".zst") else text)
        return "records"
    if name.endswith(".json"):
        path.write_bytes(hostile.as_json(hostile.changed(draw, json.loads(path.read_text()), 2)))
        return "records"
    if name.endswith(".parquet"):
        pq.write_table(pa.table(draw.choice(_columns())), path)
        return "columns"
    if name.endswith((".gz", ".zst")):
        length = draw.choice([10_000, 1_000_000, 4_000_000])  # a longer one takes time, and its progress is shown
        pattern = draw.choice([b"x", b"\0", b"\xff", b"[", b'"', b"word ", b"\n", b'{"text": "'])
        bomb = (pattern * (length // len(pattern) + 1))[:length]
        path.write_bytes(zstandard.compress(bomb) if name.endswith(".zst") else gzip.compress(bomb, 1))
        return "a bomb"
    pattern = draw.choice([b"\xff", b"\0", b'"', b",", b"\r", hostile.ESCAPE.encode(), "\u2028".encode(), b"a" * 5000])
    content = path.read_bytes()
    position = draw.randrange(len(content))
    path.write_bytes(content[:position] + pattern * draw.choice([1, 100]) + content[position:])
    return "text"


def _columns() -> list[dict[str, Any]]:
    raw = pa.array([b"\xff\xfe", b"ok", None] * 20, type=pa.binary())
    return [
        {"text": pa.array([1, 2, 3])},
        {"text": pa.array([None] * 30, type=pa.string())},
        {"text": pa.array([["a"], ["b"]])},
        {"text": pa.array([{"a": 1}] * 3)},
        {f"{hostile.ESCAPE}": pa.array(["a"] * 3)},
        {"text": pa.Array.from_buffers(pa.string(), len(raw), raw.buffers(), null_count=raw.null_count)},
        {"text": raw},
        {"text": pa.array([], type=pa.string())},
        {"text": pa.array(["x" * 2_000_000] * 3)},
        {"text": pa.array([""] * 100)},
        {"text": pa.DictionaryArray.from_arrays(pa.array([0, 1, 0]), pa.array(["a b c", "d"]))},
    ]


def _manifest(draw: random.Random) -> bytes:
    container = {
        "name": "pytorch", "image": "i", "command": ["torchrun", "--nnodes=2", "train.py"], "args": ["--lr", "1"],
        "env": [{"name": "A", "value": "b"}], "resources": {"limits": {"nvidia.com/gpu": 8, "memory": "64Gi"}},
    }  # fmt: skip
    template = {"spec": {"containers": [container], "volumes": [{"name": "v", "emptyDir": {"sizeLimit": "1Gi"}}]}}
    document = {
        "apiVersion": "kubeflow.org/v1", "kind": "PyTorchJob", "metadata": {"name": "tale"},
        "spec": {"pytorchReplicaSpecs": {"Worker": {"replicas": 2, "template": template}}},
    }  # fmt: skip
    return yaml.safe_dump(_plain(hostile.changed(draw, document, draw.choice([1, 2, 4])))).encode()


def _word(draw: random.Random) -> str:
    """A possible argument: text without NUL, or bytes that are not text."""
    value = hostile.value(draw)
    word = value if isinstance(value, str) else json.dumps(value)
    word = (
        word.replace(hostile.DIGITS, "9" * 5000)
        .replace(hostile.DEEP, "[" * 20_000)
        .replace("\0", "")
        .replace("\ud800", "")
    )
    if draw.random() < 0.06:
        word = os.fsdecode(b"\xff\xfe" + word.encode()[:50])
    if draw.random() < 0.04:
        word = "x/" * 2500
    return word


def _plain(value: Any) -> Any:
    """Without lone surrogates, which YAML cannot hold."""
    if isinstance(value, str):
        return value.encode(errors="replace").decode()
    if isinstance(value, dict):
        return {_plain(key): _plain(item) for key, item in value.items()}
    return [_plain(item) for item in value] if isinstance(value, list) else value


def _new_process(draw: random.Random, folder: Path) -> dict[str, Any]:
    """A new process with closed streams, unusual encodings, or a working directory that was deleted."""
    argv = draw.choice(
        [["ps"], ["status", "tale"], ["events", "tale"], ["logs", "tale"], ["presets"], ["nonsense"], []]
    )
    kind = draw.choice(["closed out", "closed in", "closed err", "all closed", "ascii", "C", "gone", "full"])
    environment = os.environ | {"HOME": str(folder / "home"), "KUBECONFIG": "/nonexistent", "PYTHONFAULTHANDLER": "1"}
    closing = {"closed out": ">&-", "closed in": "<&-", "closed err": "2>&-", "all closed": "<&- >&- 2>&-"}
    if kind == "ascii":
        environment["PYTHONIOENCODING"] = "ascii"
    elif kind == "C":
        environment |= {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    gone = "mkdir gone && cd gone && rmdir ../gone && " if kind == "gone" else ""
    tail = closing.get(kind, ">/dev/full" if kind == "full" else "")

    def start() -> subprocess.Popen[bytes]:
        line = f'{gone}exec "$@" {tail}'
        return subprocess.Popen(
            ["sh", "-c", line, "sh", sys.executable, "-m", "stoker", *argv],
            cwd=folder / "work", env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, start_new_session=True,
        )  # fmt: skip

    return {"description": f"{' '.join(argv)}, {kind}", "fresh": start}
