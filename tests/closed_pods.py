"""A fake API server with the pods of a run that refuses every exec, and a run that was launched there."""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import yaml

from stoker.backends.kubernetes.place import ClusterPlace
from stoker.rundir import RunDir, consent
from stoker.spec.load import load

OVERRIDES = ["script=x.py", "on.kind=kubernetes", "on.image=x", "on.volume=v", "on.nodes=2", "on.workers=1"]


class Server(ThreadingHTTPServer):
    """`hangs`: an exec gets no answer. `ends`: an exec ends all pods. `done`: the job is complete."""

    request_queue_size = 512

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.pods = 2
        self.hangs = self.ends = self.done = False
        self.asked: list[str] = []
        """The containers of the exec requests, in order."""
        self.over = threading.Event()


class Handler(BaseHTTPRequestHandler):
    server: Server

    def do_GET(self) -> None:
        url = urlsplit(self.path)
        if url.path.endswith("/exec"):
            self.server.asked += parse_qs(url.query)["container"]
            if self.server.hangs:
                self.server.over.wait()
            if self.server.ends:
                self.server.pods = 0
            self._answer({"message": "container is not valid for pod"}, code=400)
        elif url.path.endswith("/pods"):
            items = [pod(number) for number in range(self.server.pods)]
            self._answer({"metadata": {"resourceVersion": "1"}, "items": items})
        elif url.path.endswith("/demo"):
            done = {"conditions": [{"type": "Complete", "status": "True"}]} if self.server.done else {}
            self._answer({"metadata": {"name": "demo"}, "spec": {}, "status": {"active": self.server.pods, **done}})
        else:
            self._answer({"metadata": {"resourceVersion": "1"}, "items": [], "gitVersion": "v1.34.4"})

    def _answer(self, value: object, code: int = 200) -> None:
        body = json.dumps(value).encode()
        self.send_response(code)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Content-Type", "application/json")
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        del format, args


def pod(number: int) -> dict[str, object]:
    return {
        "metadata": {"name": f"demo-{number}", "labels": {}},
        "spec": {"nodeName": f"n-{number}", "containers": [{"name": "some"}]},
        "status": {"phase": "Running", "podIP": f"10.0.{number // 250}.{number % 250}"},
    }


@contextmanager
def serving(kubeconfig: Path) -> Iterator[Server]:
    with Server() as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        values = {
            "current-context": "lab",
            "clusters": [{"name": "c", "cluster": {"server": f"http://127.0.0.1:{server.server_port}"}}],
            "users": [{"name": "u", "user": {"token": "t"}}],
            "contexts": [{"name": "lab", "context": {"cluster": "c", "user": "u"}}],
        }
        kubeconfig.write_text(yaml.safe_dump(values))
        try:
            yield server
        finally:
            server.over.set()
            server.shutdown()


def launched(folder: Path, job: str, *overrides: str) -> RunDir:
    run = RunDir(folder / "runs" / "demo")
    run.create(load(None, [*OVERRIDES, *overrides]).spec, None)
    place = {"context": "lab", "namespace": "team", "job": job, "run": run.name, "volume": "v", "image": "x"}
    ref = ClusterPlace(kind="kubernetes", **place)
    ref.write(run)
    consent.record_image(run, ref.image)
    return run
