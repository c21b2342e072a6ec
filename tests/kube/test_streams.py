"""Logs and watches, line by line."""

import json
from pathlib import Path

import pytest

from stoker.kube import connect
from tests.answers import answers
from tests.kube.test_credentials import VERSION, kubeconfig

SEPARATORS = "a\x0bb\x0cc\x1cd\x85e\u2028f"  # characters at which str.splitlines splits


def test_only_a_newline_ends_a_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pod = {"metadata": {"name": "x", "resourceVersion": "2"}, "status": {"message": SEPARATORS}}
    event = json.dumps({"type": "MODIFIED", "object": pod}, ensure_ascii=False)
    empty = {"items": [], "metadata": {"resourceVersion": "1"}}

    def answer(_: str, path: str, __: object) -> tuple[int, dict[str, str], bytes]:
        if path == "/version":
            return 200, {}, VERSION
        if "/log" in path:
            return 200, {}, f"{SEPARATORS}\nlast".encode()
        return 200, {}, f"{event}\n".encode() if "watch=" in path else json.dumps(empty).encode()

    with answers(answer) as host:
        file = kubeconfig(tmp_path, cluster={"server": f"http://{host}"}, user={"token": "t"})
        monkeypatch.setenv("KUBECONFIG", str(file))
        cluster = connect()
        assert list(cluster.logs("x")) == [SEPARATORS, "last"]
        assert next(cluster.watch("Pod")) == ("MODIFIED", pod)
