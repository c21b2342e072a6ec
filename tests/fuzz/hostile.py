"""Hostile values, documents, bytes and files. Everything is drawn from a given random.Random, so a seed repeats it."""

import json
import os
import random
import shutil
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

ESCAPE = "\x1b]0;hijacked\x07"
"""Sets the title of a terminal: it must never reach one."""
DIGITS, DEEP = "@DIGITS@", "@DEEP@"
"""Placeholders for numbers and nesting that Python refuses to write. They are replaced in the text of the document."""

SCALARS: list[Any] = [
    None, True, False, -1, 0, 1, 7, 2**31, 2**63, 2**64, 10**30, -(10**30), 0.5, -0.5, 1e308, float("nan"),
    float("inf"), "", " ", "x", "x" * 300, "x" * 5000, ESCAPE, f"{ESCAPE}\n{ESCAPE}", "[bold red]x[/]",
    "[/]", "%s %d {} {0.x}",
    "../../outside/secret", "/dev/zero", "/dev/stdin", "/", "..", ".", "~", "-1", "--help", "1e400", "nan", "0x10",
    "1_0",
    "$(touch EXECUTED)", "`touch EXECUTED`", "; touch EXECUTED", "hostile:run", "hostile:Model", "os:system",
    "!!python/object/apply:os.system ['touch EXECUTED']", "a\nb", "a\0b", "\ud800", "\u202eabc", "日本語", "é" * 300,
    "https://user:hunter2@127.0.0.1:9/x", "s3://", "hf://", "file:///etc/passwd", "1" * 5000, "1" * 5000 + "k", "1..",
    [], {}, [[]], [None], [1, "a"], {"": ""}, {"a": {"b": {"c": 1}}}, {"step": "x"}, ["x"] * 1000, DIGITS, DEEP,
]  # fmt: skip


def value(draw: random.Random) -> Any:
    return draw.choice(SCALARS)


def changed(draw: random.Random, document: Any, times: int = 1) -> Any:
    """A copy of a document of dicts and lists in which some values, keys or items are hostile, missing or new."""
    document = json.loads(json.dumps(document))
    for _ in range(times):
        document = _changed_once(draw, document)
    return document


def _changed_once(draw: random.Random, document: Any) -> Any:
    places: list[tuple[Any, Any]] = []
    _collect(document, places)
    if not places or draw.random() < 0.05:
        return value(draw)
    parent, key = draw.choice(places)
    kind = draw.random()
    if kind < 0.6:
        parent[key] = value(draw)
    elif kind < 0.8:
        del parent[key]
    elif isinstance(parent, dict):
        new = value(draw)
        parent[new if isinstance(new, str) else "unknown"] = parent[key]
    else:
        parent.append(value(draw))
    return document


def _collect(node: Any, places: list[tuple[Any, Any]]) -> None:
    items = node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ()
    for key, child in items:
        places.append((node, key))
        _collect(child, places)


def as_json(document: Any, **options: Any) -> bytes:
    text = json.dumps(document, **options)
    text = text.replace(f'"{DIGITS}"', "9" * 5000).replace(f'"{DEEP}"', "[" * 50_000 + "]" * 50_000)
    return text.encode(errors="surrogatepass")


def changed_bytes(draw: random.Random, data: bytes) -> bytes:
    """Bytes as after a bad disk, an interrupted write or an edit."""
    position = draw.randrange(len(data) + 1)
    choices: list[Callable[[], bytes]] = [
        lambda: b"",
        lambda: data[:position],
        lambda: data[position:],
        lambda: data + data,
        lambda: data[:position] + draw.randbytes(draw.choice([1, 8, 300])) + data[position:],
        lambda: data[:position] + b"\0" * 64 + data[position + 64 :],
        lambda: draw.randbytes(draw.choice([1, 50, 5000])),
        lambda: b"\xff\xfe" + data,
        lambda: b"[" * 100_000 + data,
        lambda: b"9" * 5000 + data,
        lambda: data[:position] + ESCAPE.encode() + data[position:],
        lambda: b"x" * 3_000_000 + data,
    ]
    if draw.random() < 0.4 and data:
        flipped = bytearray(data)
        for _ in range(draw.choice([1, 1, 4, 32])):
            flipped[draw.randrange(len(flipped))] ^= 1 << draw.randrange(8)
        return bytes(flipped)
    return draw.choice(choices)()


def replace_file(draw: random.Random, path: Path, outside: Path) -> None:
    """Replace a file or folder with something else."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
    path.parent.mkdir(parents=True, exist_ok=True)
    kind = draw.choice(["nothing", "fifo", "folder", "out", "loop", "zero", "socket", "broken", "out folder"])
    if kind == "fifo":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
        (path / "x").write_text("x")
    elif kind == "out":
        path.symlink_to(outside / "secret")
    elif kind == "out folder":
        path.symlink_to(outside)
    elif kind == "loop":
        path.symlink_to(path.name)
    elif kind == "zero":
        path.symlink_to("/dev/zero")
    elif kind == "broken":
        path.symlink_to("nowhere")
    elif kind == "socket":
        _socket(path)


def _socket(path: Path) -> None:
    """Bind it by a short name: an address holds a hundred bytes."""
    parent = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(f"/proc/self/fd/{parent}/{path.name}")
    os.close(parent)
