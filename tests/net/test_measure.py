"""Agents that hang, die or are many: who asks them is done in time, and says who was silent."""

import subprocess
import sys
import threading
import time
from collections.abc import Iterator

import pytest

from stoker.net import measure as conducting
from stoker.net.agent.reach import in_parallel
from stoker.net.agent_client import AgentClient
from stoker.net.findings import findings
from stoker.net.measure import probe
from stoker.net.survey import NetworkSurvey, Site
from tests.net.piped import Piped
from tests.ports import free_port
from tests.waiting import PATIENCE_S

AGENT = [sys.executable, "-P", "-m", "stoker.net.agent"]


class Dying(Piped):
    """It answers so many questions, and is dead after that."""

    def __init__(self, process: subprocess.Popen[bytes], answers: int) -> None:
        super().__init__(process)
        self._left = answers

    def write(self, data: bytes) -> None:
        if self._left:
            self._left -= 1
            super().write(data)
        else:
            self._process.kill()


class Mute:
    def write(self, data: bytes) -> None:
        """Nobody reads it."""

    def lines(self) -> Iterator[str]:
        time.sleep(60)
        yield ""

    def close(self) -> None:
        """There is nothing to close."""


def started() -> subprocess.Popen[bytes]:
    return subprocess.Popen(AGENT, stdin=subprocess.PIPE, stdout=subprocess.PIPE)


def site(number: int) -> Site:
    return Site(pod=f"pod-{number}", machine=f"node-{number}", address=f"127.0.0.{number + 1}")


def conducted(agents: list[AgentClient]) -> NetworkSurvey:
    words = {"token": "secret", "port": free_port("127.0.0.1"), "live": False, "nodes": len(agents), "env": {}}
    try:
        return probe(agents, cluster_name="localhost", **words)
    finally:
        for agent in agents:
            agent.close()


@pytest.mark.parametrize("answers", [1, 2, 3, 4])  # begin, names, ports, talks; then the link
def test_an_agent_that_dies_on_the_way_is_named(answers: int) -> None:
    survey = conducted([AgentClient(site(0), Dying(started(), answers)), AgentClient(site(1), Piped(started()))])
    assert survey.lost == {"pod-0": "its agent ended"}
    assert findings(survey)[0].id == "gone"


def test_many_silent_agents_are_given_up_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(conducting, "START_TIMEOUT_S", 0.5)
    began = time.monotonic()
    survey = conducted([AgentClient(site(number), Mute()) for number in range(200)])
    assert time.monotonic() - began < 200 * 0.5  # which one after the other would take at least
    assert len(survey.lost) == 200


def test_what_takes_too_long_is_told_as_late() -> None:
    over = threading.Event()
    seconds = {"first": 0.0, "second": PATIENCE_S, "third": 0.0}
    found = in_parallel(lambda one: over.wait(seconds[one]), list(seconds), seconds=3, late=lambda _: "late")
    over.set()  # until now the second was still at work
    assert found == [False, "late", False]


def test_an_agent_ends_by_itself_though_its_stdin_stays_open() -> None:
    code = "from stoker.net.agent.__main__ import main; main(lifetime_s=1)"
    with subprocess.Popen([sys.executable, "-P", "-c", code], stdin=subprocess.PIPE) as process:
        assert process.wait(timeout=PATIENCE_S) < 0
