"""`python -m stoker.data.stream FOLDER`: the feeder. On its input it is told, in tokens, how far the training is.

It ends with its input: whoever started it is gone then, however that went.
"""

import os
import sys
import threading
from pathlib import Path

from stoker.data.claims import lock, writing
from stoker.data.stream.journal import write_error
from stoker.data.stream.making import Maker, ignore_busy
from stoker.spec import contract
from stoker.spec.errors import UserError

NICE = 10  # the training comes first; when it waits, the processor is free
POLL = 0.2  # seconds between two looks at how far the training is


class Told:
    """The last that the input said."""

    def __init__(self) -> None:
        self.tokens = 0
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self) -> None:
        for line in sys.stdin:
            self.tokens = int(line)
        os._exit(contract.EXIT_DONE)


def main(folder: Path) -> int:
    os.nice(NICE)
    told, pause = Told(), threading.Event()
    try:
        with writing(folder):
            maker = Maker(folder)
            ahead = maker.header.data.ahead * maker.header.data.window
            while not maker.has(sys.maxsize):
                if maker.journal.tokens >= told.tokens + ahead:
                    pause.wait(POLL)
                    continue
                with lock(folder, ignore_busy):
                    for _ in maker.step():
                        pass
    except UserError as e:
        write_error(folder, e.problem, e.remedy)
        return contract.EXIT_USER
    return contract.EXIT_DONE


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
