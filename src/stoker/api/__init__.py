"""The Python API, which the command line is built on.

import stoker

run = stoker.submit("run.yaml", "until.steps=2k")
end = run.wait()
print(end.state, run.view().loss)
"""

from stoker.api.run import Run, load, open_run, submit

__all__ = ["Run", "load", "open_run", "submit"]
