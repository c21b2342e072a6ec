"""`stoker export` and `stoker import` as a user types them, on a trained run."""

import base64
import json
import os
import pty
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from safetensors.torch import load_file


@pytest.fixture(scope="module")
def workdir(tmp_path_factory: pytest.TempPathFactory, trained: Path) -> Path:
    """A folder with a trained run `tale`."""
    folder = tmp_path_factory.mktemp("place")
    shutil.copytree(trained, folder / "runs" / "tale")
    return folder


@pytest.fixture
def command(
    command: Callable[..., subprocess.CompletedProcess[str]], workdir: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., subprocess.CompletedProcess[str]]:
    """In the folder of the run; transformers runs in a child process."""
    monkeypatch.chdir(workdir)
    return command


def stoker(workdir: Path, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(argv(*arguments), cwd=workdir, capture_output=True, text=True, env=os.environ | variables)


def argv(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "stoker", *arguments]


def in_terminal(workdir: Path, *arguments: str) -> tuple[int, str]:
    """Exit code and output, with a pseudo-terminal for all three streams."""
    controller, tty = pty.openpty()
    process = subprocess.Popen(argv(*arguments), cwd=workdir, stdin=tty, stdout=tty, stderr=tty)
    os.close(tty)
    screen = b""
    while True:
        try:
            piece = os.read(controller, 4096)
        except OSError:  # Linux raises it when the other end is closed
            break
        if not piece:
            break
        screen += piece
    os.close(controller)
    return process.wait(), screen.decode().replace("\r\n", "\n")


def hidden(folder: Path, body: str) -> str:
    """A folder with a module that replaces transformers."""
    folder.mkdir()
    (folder / "transformers.py").write_text(body + "\n")
    return str(folder)


def refused(done: subprocess.CompletedProcess[str], *parts: str, code: int = 2) -> None:
    assert done.returncode == code, done.stdout + done.stderr
    assert done.stderr.count("\n") == 1, done.stderr
    for part in parts:
        assert part in done.stderr


def test_a_run_is_exported_imported_and_exported_again(workdir: Path, command) -> None:
    code, screen = in_terminal(workdir, "export", "tale", "-o", "out/first", "--require-proof")
    assert code == 0, screen
    assert "proven: transformers computes the same as Stoker" in screen
    assert "checking it against transformers" in screen
    assert str(workdir / "out" / "first") in screen
    assert "\x1b" not in screen

    code, screen = in_terminal(workdir, "import", "out/first", "--name", "back")
    assert code == 0, screen
    assert f"{workdir}/runs/back" in screen
    assert "back" in command("status").stdout
    assert "imported from" in command("status", "back").stdout

    done = command("export", "back", "--json")
    record = json.loads(done.stdout)
    assert (done.returncode, record["verdict"], record["step"]) == (0, "proven", 0)
    assert record["folder"] == str(workdir / "runs" / "back" / "export" / "step-0")
    first = json.loads((workdir / "out" / "first" / "stoker.json").read_text())
    assert record["files"]["model.safetensors"] == first["files"]["model.safetensors"]
    second = command("import", "out/first", "--name", "third", "--json")
    assert json.loads(second.stdout)["name"] == "third"


@pytest.mark.soak
def test_a_checkpoint_in_bf16_and_shards(workdir: Path) -> None:
    checkpoint = "runs/tale/checkpoints/step-000000020"
    done = stoker(workdir, "export", checkpoint, "--dtype", "bf16", "--shard-size", "20kB")
    assert done.returncode == 0, done.stdout + done.stderr
    folder = workdir / "runs" / "tale" / "export" / "step-20"
    shards = list(folder.glob("model-*.safetensors"))
    assert len(shards) > 1
    assert all(str(tensor.dtype) == "torch.bfloat16" for file in shards for tensor in load_file(file).values())
    refused(stoker(workdir, "export", checkpoint), str(folder), "is not empty")


def test_without_transformers_an_export_is_unproven_and_can_be_refused(
    command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = hidden(tmp_path / "hidden", "raise ImportError('No module named transformers')")
    monkeypatch.setenv("PYTHONPATH", path)
    done = command("export", "tale", "-o", str(tmp_path / "one"))
    assert (done.returncode, "unproven" in done.stdout) == (0, True), done.stdout + done.stderr
    assert "pip install 'stoker[hf]'" in done.stdout
    assert json.loads((tmp_path / "one" / "stoker.json").read_text())["verdict"] == "unproven"
    done = command("export", "tale", "-o", str(tmp_path / "two"), "--require-proof")
    refused(done, "cannot be proven", "pip install")
    assert not [path for path in tmp_path.iterdir() if "two" in path.name]


def test_a_disproved_export_exits_with_3_and_is_deleted_if_proof_is_required(
    command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    body = "class AutoModelForCausalLM:\n    def from_pretrained(*_, **__):\n        raise OSError('unknown format')"
    path = hidden(tmp_path / "hidden", f"{body}\nAutoTokenizer = AutoModelForCausalLM")
    monkeypatch.setenv("PYTHONPATH", path)
    done = command("export", "tale", "-o", str(tmp_path / "one"))
    assert done.returncode == 3
    assert "NOT the same as Stoker computes" in done.stdout
    assert "OSError: unknown format" in done.stdout
    done = command("export", "tale", "-o", str(tmp_path / "two"), "--require-proof")
    refused(done, "transformers disproves the export", code=3)
    assert not [path for path in tmp_path.iterdir() if "two" in path.name]


def test_a_killed_export_leaves_no_partial_folder_and_the_next_cleans_up(
    workdir: Path, command, tmp_path: Path
) -> None:
    path = hidden(tmp_path / "hidden", "import time\ntime.sleep(600)")
    process = subprocess.Popen(
        argv("export", "tale", "-o", str(tmp_path / "out")),
        cwd=workdir,
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": path},
        start_new_session=True,
    )
    assert process.stdout is not None
    while "checking it" not in process.stdout.readline():
        assert process.poll() is None
    left = [path.name for path in tmp_path.iterdir() if "out" in path.name]
    assert len(left) == 1
    assert left[0].startswith(".out.")
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate()
    assert not (tmp_path / "out").exists()
    assert command("export", "tale", "-o", str(tmp_path / "out")).returncode == 0
    assert [path.name for path in tmp_path.iterdir() if "out" in path.name] == ["out"]


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["export", "tail"], "there is no run 'tail' in"),
        (["export", "tail"], "Did you mean tale?"),
        (["export", "runs"], "runs holds no model"),
        (["export", "tale", "--step", "3"], "has no checkpoint of step 3. There are: 20, 40"),
        (["export", "tale", "--step", "last"], "--step is last"),
        (["export", "tale", "--shard-size", "big"], "'big' is not a size"),
        (["import", "gone", "--name", "x"], "there is no folder gone"),
        (["import", "other", "--name", "x"], 'model_type is "t5"'),
        (["import", "runs/tale", "--name", "x"], "belongs to run 'tale' already"),
    ],
)
def test_bad_input_is_one_line_and_a_remedy(
    workdir: Path, command: Callable[..., subprocess.CompletedProcess[str]], arguments: list[str], problem: str
) -> None:
    (workdir / "other").mkdir(exist_ok=True)
    (workdir / "other" / "config.json").write_text('{"model_type": "t5"}')
    refused(command(*arguments), problem)


def test_a_push_that_cannot_work_is_refused_before_anything_is_written(workdir: Path, command, tmp_path: Path) -> None:
    out = tmp_path / "out"
    arguments = ["export", "tale", "-o", str(out), "--push", "me/tale"]
    unreachable = {"HF_TOKEN": "", "HF_HOME": str(tmp_path / "hf"), "HF_ENDPOINT": "http://127.0.0.1:9"}
    refused(stoker(workdir, *arguments, **unreachable), "needs a token", "Set HF_TOKEN")
    refused(
        stoker(workdir, *arguments, **unreachable | {"HF_TOKEN": "secret"}), "http://127.0.0.1:9", "cannot be reached"
    )
    refused(command(*arguments[:-1], "a/b/c"), "a/b/c is not a name on a hub")
    assert not out.exists()


class Hub(BaseHTTPRequestHandler):
    """The part of the hub's API that an upload of small files uses."""

    server: "HubServer"

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        if self.headers.get("Authorization") != "Bearer good":
            self.answer({"error": "who are you?"}, 403)
        elif self.path == "/api/repos/create":
            self.server.created = json.loads(body)
            self.answer({"url": f"{self.server.address}/me/tale"})
        elif self.path.startswith("/api/models/me/tale/preupload/"):
            files = json.loads(body)["files"]
            uploads = [{"path": file["path"], "uploadMode": "regular", "shouldIgnore": False} for file in files]
            self.answer({"files": uploads})
        elif self.path.startswith("/api/models/me/tale/commit/"):
            for line in map(json.loads, body.splitlines()):
                if line["key"] == "file":
                    self.server.files[line["value"]["path"]] = base64.b64decode(line["value"]["content"])
            self.answer({"commitUrl": f"{self.server.address}/me/tale/commit/1", "commitOid": "1"})
        else:
            self.answer({"errors": [], "warnings": []})

    def do_GET(self) -> None:
        self.answer({"error": "not yours"}, 403)

    def answer(self, value: object, code: int = 200) -> None:
        body = json.dumps(value).encode()
        self.send_response(code)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


class HubServer(ThreadingHTTPServer):
    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Hub)
        self.address = f"http://127.0.0.1:{self.server_address[1]}"
        self.created: dict[str, object] = {}
        self.files: dict[str, bytes] = {}


@pytest.fixture
def hub() -> Iterator[HubServer]:
    server = HubServer()
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield server
    server.shutdown()
    server.server_close()


def test_a_push_uploads_the_same_files_to_a_private_repository(workdir: Path, tmp_path: Path, hub: HubServer) -> None:
    out = tmp_path / "out"
    arguments = ["export", "tale", "-o", str(out), "--push", "me/tale"]
    environment = {"HF_ENDPOINT": hub.address, "HF_HOME": str(tmp_path / "hf"), "HF_HUB_DISABLE_XET": "1"}
    done = stoker(workdir, *arguments, **environment, HF_TOKEN="good")
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{hub.address}/me/tale" in done.stdout
    assert "good" not in done.stdout + done.stderr
    assert hub.files == {path.name: path.read_bytes() for path in out.iterdir()}
    assert hub.created["visibility"] == "private"
    arguments[3] = str(tmp_path / "other")
    refused(
        stoker(workdir, *arguments, **environment, HF_TOKEN="bad"),
        "is exported, but the upload to me/tale failed",
        "may write",
    )
    assert (tmp_path / "other" / "stoker.json").exists()
