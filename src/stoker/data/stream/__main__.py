"""`python -m stoker.data.stream FOLDER`: the feeder. It reads the training's progress, in tokens, from its stdin.

It exits when stdin is closed: the worker that started it has ended.
"""

import os
import sys
import threading
from pathlib import Path

from stoker.data.output_folder import lock, writing
from stoker.data.stream.journal import write_error
from stoker.data.stream.writer import StreamWriter, ignore_busy
from stoker.spec import contract
from stoker.spec.errors import UserError

NICE = 10  # training comes first; while it waits, the CPU is free
POLL_S = 0.2


class WantedTokens:
    """The last number on stdin: how many tokens the training needs."""

    def __init__(self) -> None:
        self.tokens = 0
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self) -> None:
        for line in sys.stdin:
            self.tokens = int(line)
        os._exit(contract.EXIT_DONE)


def main(folder: Path) -> int:
    os.nice(NICE)
    wanted, pause = WantedTokens(), threading.Event()
    try:
        with writing(folder):
            maker = StreamWriter(folder)
            ahead = maker.header.data.ahead * maker.header.data.window
            while not maker.has(sys.maxsize):
                if maker.journal.tokens >= wanted.tokens + ahead:
                    pause.wait(POLL_S)
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
