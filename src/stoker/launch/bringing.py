"""From a bucket to the volume of a run, by a pod: the bytes do not pass through here, only the word of how many."""

import json
import time
from collections.abc import Callable, Sequence

from stoker.launch.remote import Remote, check
from stoker.launch.transfer.frames import Cut
from stoker.launch.transfer.meter import Meter, Progress
from stoker.spec.errors import UserError

MODULE = "stoker.data.remote.bring"
TRIES = 8  # in a row, without progress
PAUSE = 1.0  # seconds before the second


def bring(remote: Remote, url: str, into: str, words: Sequence[str], progress: Callable[[Progress], None]) -> Progress:
    """The object, or all below it, into a folder of the volume; with a pod that dies, another goes on."""
    failures = best = 0
    meter = Meter(progress)
    while True:
        moved = meter.moved
        try:
            _once(remote, [url, f"{remote.root}/{into}", *words], meter)
            return meter.progress
        except Cut as e:
            failures = 1 if meter.moved > moved or meter.progress.done > best else failures + 1
            best = max(best, meter.progress.done)
            if failures == TRIES:
                raise UserError(
                    f"{url} could not be fetched: its pod was lost {TRIES} times in a row ({e})",
                    remedy="Run the same command again: it goes on where it stopped",
                ) from e
            meter.wait(f"the pod is gone ({e}); another goes on")
            time.sleep(PAUSE)


def _once(remote: Remote, words: Sequence[str], meter: Meter) -> None:
    command = remote.connect(["-m", MODULE, *words])
    file, phase, done = "", "", 0
    try:
        for line in command.lines():
            step = json.loads(line)
            if (file, phase) != (step["file"], step["phase"]):
                file, phase = step["file"], step["phase"]
                meter.begin(total=step["total"], files=1, there=step["done"], files_there=0)
            else:
                meter.move(step["done"] - done)
            done = step["done"]
            if phase in ("done", "there"):
                meter.file()
    finally:
        command.close()
    check(command, "cp")
    meter.end()
