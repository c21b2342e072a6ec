"""Which pods and containers of a run `stoker net` asks, as an API server hears it that lets nobody in."""

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import ClassVar
from urllib.parse import parse_qs, urlsplit

import pytest
import yaml

from stoker.api.net import between_nodes_of
from stoker.launch.jobs import KINDS, job_kind
from stoker.launch.probe.pods import MOST
from stoker.rundir import PlaceRef, RunDir
from stoker.spec.load import load

WORDS = ["script=x.py", "on.kind=kubernetes", "on.image=x", "on.volume=v", "on.nodes=2", "on.workers=1"]


class Handler(BaseHTTPRequestHandler):
    asked: ClassVar[list[str]]
    pods: ClassVar[int]

    def do_GET(self) -> None:
        url = urlsplit(self.path)
        if url.path.endswith("/exec"):
            self.asked += parse_qs(url.query)["container"]
            self._answer({"message": "container is not valid for pod"}, code=400)
        elif url.path.endswith("/pods"):
            self._answer({"metadata": {"resourceVersion": "1"}, "items": [pod(n) for n in range(self.pods)]})
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


@pytest.fixture
def api(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[type[Handler]]:
    class Own(Handler):
        asked: ClassVar[list[str]] = []
        pods = 2

    with ThreadingHTTPServer(("127.0.0.1", 0), Own) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        values = {
            "current-context": "lab",
            "clusters": [{"name": "c", "cluster": {"server": f"http://127.0.0.1:{server.server_port}"}}],
            "users": [{"name": "u", "user": {"token": "t"}}],
            "contexts": [{"name": "lab", "context": {"cluster": "c", "user": "u"}}],
        }
        (tmp_path / "kubeconfig").write_text(yaml.safe_dump(values))
        monkeypatch.setenv("KUBECONFIG", str(tmp_path / "kubeconfig"))
        monkeypatch.chdir(tmp_path)
        yield Own
        server.shutdown()


def launched(folder: Path, job: str, *words: str) -> RunDir:
    run = RunDir(folder / "runs" / "demo")
    run.create(load(None, [*WORDS, *words]).spec, None)
    place = {"context": "lab", "namespace": "team", "job": job, "run": run.name, "volume": "v", "image": "x"}
    run.write_place(PlaceRef(kind="kubernetes", **place))  # type: ignore[arg-type]
    return run


@pytest.mark.parametrize("job", KINDS)
def test_the_supervisors_container_is_asked_whatever_its_kind_calls_it(
    job: str, api: type[Handler], tmp_path: Path
) -> None:
    survey = between_nodes_of(launched(tmp_path, job), nodes=None, gpus=False)
    assert api.asked == [job_kind(job).CONTAINER] * 2
    assert set(survey.lost) == {"demo-0", "demo-1"}


@pytest.mark.usefixtures("api")
def test_what_a_remedy_has_to_name_is_the_runs_own(tmp_path: Path) -> None:
    place = between_nodes_of(launched(tmp_path, "job", "on.avoid=[n-7]"), nodes=None, gpus=False).place
    assert (place.run, place.avoid) == ("demo", ("n-7",))
    assert place.again == "stoker stop demo && stoker launch demo"
    assert (place.kubectl, place.anywhere) == ("kubectl --context lab -n team", "kubectl --context lab")


def test_of_very_many_pods_as_many_are_asked_as_can_be_and_no_fewer(api: type[Handler], tmp_path: Path) -> None:
    api.pods = MOST + 1
    survey = between_nodes_of(launched(tmp_path, "job"), nodes=None, gpus=False)
    assert (len(survey.lost), len(api.asked), survey.nodes) == (MOST, MOST, MOST + 1)
