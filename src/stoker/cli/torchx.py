"""A TorchX component, with which `torchx run` starts a run on Volcano:

    torchx run -s kubernetes --workspace "" -cfg queue=test,namespace=training stoker.cli.torchx:app --run run.yaml

TorchX executes the text of this file and takes every function in it for a component, so it has only one.
"""

from torchx.specs import AppDef

from stoker.cli import torchx_app


def app(*overrides: str, run: str) -> AppDef:
    """Trains the run of a run file on the nodes of a Volcano queue. Its image, data and folder are uploaded first.

    Args:
        overrides: of the run file, such as on.nodes=2 on.volume=training
        run: the run file
    """
    return torchx_app.component(run, overrides)
