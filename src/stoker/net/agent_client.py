"""The client side of the agents in the pods: send a request as a line of JSON, wait for the answer."""

import json
import queue
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any, Protocol, TypeVar

from stoker import __version__
from stoker.backends.transfer.frames import PeerLost
from stoker.net.survey import Site
from stoker.spec.errors import StokerError, UserError

ARGV = ("python3", "-P", "-m", "stoker.net.agent")
MALFORMED = (ValueError, LookupError, TypeError, AttributeError)
"""What parsing an unexpected answer raises."""
T = TypeVar("T")


class AgentStream(Protocol):
    """The stdin and stdout of an agent."""

    def write(self, data: bytes) -> None: ...

    def lines(self) -> Iterator[str]: ...

    def close(self) -> None: ...


class NoAnswer(Exception):
    """An agent did not answer, or answered with an error; the message is the reason."""


class AgentClient:
    def __init__(self, site: Site, stream: AgentStream) -> None:
        self.site = site
        self._stream = stream
        self._answers: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._lock = threading.Lock()  # one request at a time
        self._ended: Exception | None = None
        threading.Thread(target=self._read, daemon=True).start()

    def ask(self, verb: str, *, timeout_s: float, **arguments: object) -> Any:
        """Raises NoAnswer. After a timeout the agent is not asked again: its next answer may be a late one."""
        with self._lock:
            if self._ended is None:
                with suppress(OSError):  # the reading thread reports why the stream is closed
                    self._stream.write(json.dumps({"verb": verb} | arguments).encode() + b"\n")
                try:
                    answer = self._answers.get(timeout=timeout_s)
                except queue.Empty:
                    answer = NoAnswer(f"no answer within {timeout_s:.0f} seconds")
                if not isinstance(answer, Exception):
                    if "error" in answer:
                        raise NoAnswer(str(answer["error"]))
                    return answer.get("answer")
                self._ended = answer
        reason = self._ended.problem if isinstance(self._ended, StokerError) else str(self._ended)
        raise NoAnswer(reason) from self._ended

    def close(self) -> None:
        self._stream.close()

    def _read(self) -> None:
        try:
            for line in self._stream.lines():
                answer = json.loads(line)
                self._answers.put(answer if isinstance(answer, dict) else NoAnswer("its answer is not an object"))
            self._answers.put(NoAnswer("its agent ended"))
        except (StokerError, PeerLost, OSError, ValueError) as e:  # passed to the thread that waits for the answer
            self._answers.put(e)


class SharedDeadline:
    """Requests to many agents that must all be answered before one deadline. Remembers which pods did not answer."""

    def __init__(self, seconds: float) -> None:
        self._end = time.monotonic() + seconds
        self.lost: dict[str, str] = {}
        """Pod -> reason."""

    @property
    def left_s(self) -> float:
        return max(0.0, self._end - time.monotonic())

    def ask(
        self, agent: AgentClient, verb: str, *, timeout_s: float, parse: Callable[[Any], T], **arguments: object
    ) -> T:
        """The parsed answer. Raises NoAnswer."""
        try:
            answer = agent.ask(verb, timeout_s=min(timeout_s, self.left_s), **arguments)
            try:
                return parse(answer)
            except MALFORMED as e:
                raise NoAnswer(f"its answer cannot be read ({e})") from _other_version(agent.site.pod)
        except NoAnswer as e:
            self.lost.setdefault(agent.site.pod, str(e))
            raise


def _other_version(pod: str) -> UserError:
    return UserError(
        f"the image of pod {pod} has another version of Stoker than this machine, {__version__}",
        remedy="Use that version here, or an image of this one",
    )


def in_parallel(items: Sequence[T], ask: Callable[[T], Any]) -> list[Any]:
    """The answers in order; a NoAnswer in place of a missing answer. One thread per item."""

    def answer(item: T) -> Any:
        try:
            return ask(item)
        except NoAnswer as e:
            return e

    if not items:
        return []
    with ThreadPoolExecutor(len(items)) as pool:
        return list(pool.map(answer, items))
