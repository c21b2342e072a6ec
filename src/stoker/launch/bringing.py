"""From a bucket to the volume of a run, by a pod: the bytes do not pass through here, only the word of how many."""

import json
from collections.abc import Callable, Sequence

from stoker.launch.remote import Remote, check
from stoker.launch.transfer.meter import Meter, Progress
from stoker.launch.transfer.patience import patiently

MODULE = "stoker.data.remote.bring"
PAUSE = 1.0  # seconds before another pod is asked for


def bring(remote: Remote, url: str, into: str, words: Sequence[str], progress: Callable[[Progress], None]) -> Progress:
    """The object, or all below it, into a folder of the volume; with a pod that dies, another goes on."""
    meter = Meter(progress)
    patiently(
        lambda: _once(remote, [url, f"{remote.root}/{into}", *words], meter),
        meter,
        marks=lambda: (meter.progress.done, meter.moved),  # of the file at hand, and of all of them
        pauses=(PAUSE, PAUSE),
        waiting=lambda cut: f"the pod is gone ({cut}); another goes on",
        lost=f"{url} could not be fetched: its pod was lost",
        remedy="Run the same command again: it goes on where it stopped",
    )
    return meter.progress


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
