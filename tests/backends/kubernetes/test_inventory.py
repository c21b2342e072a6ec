"""The nodes of a cluster, grouped by kind."""

from stoker.backends.kubernetes.inventory import quantity, tolerates
from tests.backends.kubernetes.nodes import GIB, cluster, node


def test_quantities_of_kubernetes_are_parsed() -> None:
    read = [quantity(text) for text in ("2", "1930m", "16Gi", "1e3", "129M", "8Ki", "?")]
    assert read == [2, 1.93, 16 * GIB, 1000, 129e6, 8192, 0]


def test_a_thousand_nodes_of_one_kind_are_one_kind() -> None:
    inventory = cluster(*(node(f"n{number}", cpu="4", memory="16Gi") for number in range(1000)))
    assert [count for _, count in inventory.kinds] == [1000]


def test_a_toleration_is_matched_as_the_scheduler_does() -> None:
    taint = {"key": "team", "value": "nlp", "effect": "NoSchedule"}
    for toleration in (
        {"key": "team", "operator": "Exists"},
        {"operator": "Exists"},
        {"key": "team", "operator": "Equal", "value": "nlp", "effect": "NoSchedule"},
        {"key": "team", "value": "nlp", "effect": ""},
    ):
        assert tolerates(toleration, taint)
    for toleration in (
        {"key": "team", "operator": "Equal", "value": "cv"},
        {"key": "team", "operator": "Exists", "effect": "NoExecute"},
        {"key": "other", "operator": "Exists"},
        {"value": "nlp"},
    ):
        assert not tolerates(toleration, taint)
