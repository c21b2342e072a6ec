from typing import Literal

from stoker.spec.on import Nodes, On


class ToyOn(On):
    kind: Literal["toy"] = "toy"
    root: str
    """The folder that stands for another machine's disk."""
    nodes: Nodes = Nodes("1")

    @property
    def node_range(self) -> Nodes:
        return self.nodes
