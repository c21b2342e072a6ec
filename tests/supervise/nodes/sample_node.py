"""A node of a run, as it introduces itself to the leader."""

from stoker.supervise.nodes.membership import Node

ADDRESS = "127.0.0.1"


def sample_node(index: int) -> Node:
    return Node(index=index, address=ADDRESS, workers=2, host="here", pod=f"pod-{index}")
