"""Agents that hang, end or are many: the probe ends in time, and names the pods that did not answer."""

import queue
import subprocess
import sys
import threading
import time
from collections.abc import Iterator

import pytest

from stoker.net import measure
from stoker.net.agent.reach import in_parallel
from stoker.net.agent_client import AgentClient
from stoker.net.findings import findings
from stoker.net.measure import probe
from stoker.net.survey import NetworkSurvey, Site
from stoker.spec.errors import UserError
from tests.net.piped import Piped
from tests.ports import free_port
from tests.waiting import PATIENCE_S

AGENT = [sys.executable, "-P", "-m", "stoker.net.agent"]


class Dying(Piped):
    """Answers so many requests, then is killed."""

    def __init__(self, process: subprocess.Popen[bytes], answers: int) -> None:
        super().__init__(process)
        self._left = answers

    def write(self, data: bytes) -> None:
        if self._left:
            self._left -= 1
            super().write(data)
        else:
            self._process.kill()


class Silent:
    def write(self, data: bytes) -> None:
        """Ignored."""

    def lines(self) -> Iterator[str]:
        time.sleep(60)
        yield ""

    def close(self) -> None:
        """Nothing is open."""


def started() -> subprocess.Popen[bytes]:
    return subprocess.Popen(AGENT, stdin=subprocess.PIPE, stdout=subprocess.PIPE)


def site(number: int) -> Site:
    return Site(pod=f"pod-{number}", machine=f"node-{number}", address=f"127.0.0.{number + 1}")


def probed(agents: list[AgentClient]) -> NetworkSurvey:
    arguments = {"token": "secret", "port": free_port("127.0.0.1"), "live": False, "nodes": len(agents), "env": {}}
    try:
        return probe(agents, cluster_name="localhost", **arguments)
    finally:
        for agent in agents:
            agent.close()


@pytest.mark.parametrize("answers", [1, 2, 3, 4])  # begin, names, ports, talks; then the link
def test_an_agent_that_ends_early_is_named(answers: int) -> None:
    survey = probed([AgentClient(site(0), Dying(started(), answers)), AgentClient(site(1), Piped(started()))])
    assert survey.lost == {"pod-0": "its agent ended"}
    assert findings(survey)[0].id == "gone"


class Scripted:
    """Answers every request with the same line."""

    def __init__(self, line: str) -> None:
        self._line = line
        self._requests: queue.SimpleQueue[bytes] = queue.SimpleQueue()

    def write(self, data: bytes) -> None:
        self._requests.put(data)

    def lines(self) -> Iterator[str]:
        while self._requests.get():
            yield self._line

    def close(self) -> None:
        self._requests.put(b"")


@pytest.mark.parametrize("line", ['{"answer": {"port": 1}}', '{"answer": []}', '{"answer": null}', "{}", "[]", "1"])
def test_an_agent_of_another_version_is_named(line: str) -> None:
    survey = probed([AgentClient(site(0), Scripted(line)), AgentClient(site(1), Piped(started()))])
    assert list(survey.lost) == ["pod-0"]
    assert findings(survey)[0].id == "gone"


def test_an_image_with_another_version_in_all_pods_is_an_error_with_a_remedy() -> None:
    with pytest.raises(UserError, match="the image of pod pod-0 has another version of Stoker than this machine"):
        probed([AgentClient(site(0), Scripted('{"answer": {"port": 1}}'))])


def test_many_silent_agents_time_out_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measure, "START_TIMEOUT_S", 0.5)
    began = time.monotonic()
    survey = probed([AgentClient(site(number), Silent()) for number in range(200)])
    assert time.monotonic() - began < 200 * 0.5  # which one after the other would take at least
    assert len(survey.lost) == 200


def test_an_answer_that_takes_too_long_is_late() -> None:
    finished = threading.Event()
    seconds = {"first": 0.0, "second": PATIENCE_S, "third": 0.0}
    answers = in_parallel(lambda name: finished.wait(seconds[name]), list(seconds), seconds=3, late=lambda _: "late")
    finished.set()  # until now the second was running
    assert answers == [False, "late", False]


def test_an_agent_ends_by_itself_while_its_stdin_is_open() -> None:
    code = "from stoker.net.agent.__main__ import main; main(lifetime_s=1)"
    with subprocess.Popen([sys.executable, "-P", "-c", code], stdin=subprocess.PIPE) as process:
        assert process.wait(timeout=PATIENCE_S) < 0
