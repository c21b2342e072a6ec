"""An agent in a pod as the one who asks sees it: a question, an answer, and patience between them."""

import json
import queue
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any, Protocol, TypeVar

from stoker.launch.probe.survey import Site
from stoker.launch.transfer.frames import Cut
from stoker.spec.errors import StokerError

ARGV = ("python3", "-P", "-m", "stoker.launch.probe")
T = TypeVar("T")


class Stream(Protocol):
    """What an agent's stdin and stdout are at this end."""

    def write(self, data: bytes) -> None: ...

    def lines(self) -> Iterator[str]: ...

    def close(self) -> None: ...


class Silent(Exception):
    """No answer, and why."""


class Agent:
    def __init__(self, site: Site, stream: Stream) -> None:
        self.site = site
        self._stream = stream
        self._answers: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._lock = threading.Lock()  # one question at a time
        self._ended: Exception | None = None
        threading.Thread(target=self._read, daemon=True).start()

    def ask(self, verb: str, *, patience: float, **words: object) -> Any:
        """Raises Silent; who was silent once is not asked again, for a late answer would be to another question."""
        with self._lock:
            if self._ended is None:
                with suppress(OSError):  # why it is gone is told by who reads from it
                    self._stream.write(json.dumps({"verb": verb} | words).encode() + b"\n")
                try:
                    answer = self._answers.get(timeout=patience)
                except queue.Empty:
                    answer = Silent(f"no answer within {patience:.0f} seconds")
                if not isinstance(answer, Exception):
                    if "error" in answer:
                        raise Silent(answer["error"])
                    return answer["answer"]
                self._ended = answer
        why = self._ended.problem if isinstance(self._ended, StokerError) else str(self._ended)
        raise Silent(why) from self._ended

    def close(self) -> None:
        self._stream.close()

    def _read(self) -> None:
        try:
            for line in self._stream.lines():
                self._answers.put(json.loads(line))
            self._answers.put(Silent("its agent ended"))
        except (StokerError, Cut, OSError, ValueError) as e:
            self._answers.put(e)


class Roll:
    """Who is asked until one end of time that all share, and who was silent and why."""

    def __init__(self, seconds: float) -> None:
        self._end = time.monotonic() + seconds
        self.lost: dict[str, str] = {}

    @property
    def left(self) -> float:
        return max(0.0, self._end - time.monotonic())

    def ask(self, agent: Agent, verb: str, *, patience: float, **words: object) -> Any:
        try:
            return agent.ask(verb, patience=min(patience, self.left), **words)
        except Silent as e:
            self.lost.setdefault(agent.site.pod, str(e))
            raise


def at_once(some: Sequence[T], ask: Callable[[T], Any]) -> list[Any]:
    """The answers in order; of one that is silent, the Silent itself. None waits for another's turn."""

    def heard(one: T) -> Any:
        try:
            return ask(one)
        except Silent as e:
            return e

    if not some:
        return []
    with ThreadPoolExecutor(len(some)) as pool:
        return list(pool.map(heard, some))
