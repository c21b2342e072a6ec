"""A run as TorchX's own command line starts it, on Volcano:

    torchx run -s kubernetes --workspace "" -cfg queue=test,namespace=training stoker.launch.torchx:app --run run.yaml

TorchX runs the text of this file among names of its own, so there is one name here. What it stands for is a command,
above the rooms that this one may import: it is loaded by name.
"""

import importlib

from torchx.specs import AppDef


def app(*words: str, run: str) -> AppDef:
    """Trains what a run file says on the nodes of a Volcano queue. The run's image, data and folder are brought first.

    Args:
        words: values that overrule the run file, such as on.nodes=2 on.volume=training
        run: the run file
    """
    made: AppDef = importlib.import_module("stoker.cli.torchx").component(run, words)
    return made
