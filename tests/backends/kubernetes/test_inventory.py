"""The nodes of a cluster, grouped by kind."""

from stoker.backends.kubernetes.inventory import quantity
from tests.backends.kubernetes.nodes import GIB, cluster, node


def test_quantities_of_kubernetes_are_parsed() -> None:
    read = [quantity(text) for text in ("2", "1930m", "16Gi", "1e3", "129M", "8Ki", "?")]
    assert read == [2, 1.93, 16 * GIB, 1000, 129e6, 8192, 0]


def test_a_thousand_nodes_of_one_kind_are_one_kind() -> None:
    there = cluster(*(node(f"n{number}", cpu="4", memory="16Gi") for number in range(1000)))
    assert [count for _, count in there.kinds] == [1000]
