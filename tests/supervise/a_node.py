"""A node of a run, as it tells others of itself."""

from stoker.supervise.members import Node

HOME = "127.0.0.1"


def a_node(node: int) -> Node:
    return Node(node=node, address=HOME, workers=2, host="here", pod=f"pod-{node}")
