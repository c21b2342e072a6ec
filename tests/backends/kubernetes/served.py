"""An API server with prepared answers, for cases that a real cluster cannot produce."""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from email.message import Message
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import yaml

from tests.answers import Answer, answers

NOT_FOUND = {"message": "not found", "details": {"name": "x"}}


@contextmanager
def served(folder: Path, answer: Callable[[str, str, str], tuple[int, Any]]) -> Iterator[Path]:
    """`answer(method, path, query)` returns status and object. Yields the path of its kubeconfig."""

    def respond(method: str, path: str, _headers: Message) -> Answer:
        url = urlsplit(path)
        version = {"gitVersion": "v1.34.4"}
        code, value = (200, version) if url.path == "/version" else answer(method, url.path, unquote(url.query))
        return code, {"Content-Type": "application/json"}, json.dumps(value).encode()

    with answers(respond) as host:
        values = {
            "current-context": "lab",
            "clusters": [{"name": "c", "cluster": {"server": f"http://{host}"}}],
            "users": [{"name": "u", "user": {"token": "t"}}],
            "contexts": [{"name": "lab", "context": {"cluster": "c", "user": "u", "namespace": "team"}}],
        }
        file = folder / "kubeconfig"
        file.write_text(yaml.safe_dump(values))
        yield file
