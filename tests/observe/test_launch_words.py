"""What a remedy has typed keeps all that the run had: it is read as a shell and `launch` read it."""

import shlex

import pytest

from stoker.observe.launch_words import word, words
from stoker.spec.load import load
from stoker.spec.on import Nodes, On

POD = {
    "spec": {"containers": [{"name": "pytorch", "imagePullPolicy": "Never", "env": [{"name": "A", "value": "it's"}]}]}
}


def typed(text: str) -> On:
    return load(None, ["script=x.py", "on.kind=kubernetes", *shlex.split(text)]).spec.on


def test_a_list_or_a_mapping_keeps_what_was_in_it() -> None:
    found = words(On(kind="kubernetes", image_secrets=["one"], selectors={"role": "gpu"}, pod=POD), 1)
    assert typed(found["opened"].replace("NAME", "two")).image_secrets == ["one", "two"]
    assert typed(found["processors"]).selectors == {"role": "gpu", "kubernetes.io/arch": "ARCH"}
    [container] = typed(found["pulled"]).pod["spec"]["containers"]
    assert container == {"name": "pytorch", "env": [{"name": "A", "value": "it's"}]}
    demoted = typed(found["demoted"]).pod["spec"]
    assert demoted["containers"] == POD["spec"]["containers"]
    assert demoted["securityContext"]["runAsUser"] == 1000


def test_a_run_over_a_runtime_of_the_clusters_is_given_no_range_of_nodes() -> None:
    four = Nodes("4")
    assert typed(words(On(kind="kubernetes", nodes=four), 4)["fewer"]).nodes.least == 1
    runtime = On(kind="kubernetes", job="trainjob", runtime="torch-distributed", nodes=four)
    fewer = words(runtime, 4)["fewer"].replace("N", "2")
    assert typed(f"on.job=trainjob on.runtime=torch-distributed {fewer}").nodes.fixed


@pytest.mark.parametrize(("wanted", "now", "fewer"), [("2", 2, "on.nodes=1..2"), ("2..4", 4, "on.nodes=1..4")])
def test_fewer_nodes_are_advised_where_it_needs_more_than_one(wanted: str, now: int, fewer: str) -> None:
    assert words(On(kind="kubernetes", nodes=Nodes(wanted)), now)["fewer"] == fewer


@pytest.mark.parametrize(("wanted", "now"), [("1..2", 2), ("1..8", 3), ("1", 1)])
def test_a_range_is_not_advised_to_a_run_that_has_it(wanted: str, now: int) -> None:
    assert words(On(kind="kubernetes", nodes=Nodes(wanted)), now)["fewer"] == ""


def test_one_node_is_advised_to_ask_for_less_of_it() -> None:
    assert words(On(kind="kubernetes", nodes=Nodes("2")), 2)["less"] == "on.nodes=N"
    assert words(On(kind="kubernetes", gpus=8), 1)["less"] == "on.gpus=N"
    assert words(On(kind="kubernetes"), 1)["less"] == "on.cpu=CORES"


def test_words_survive_a_shell() -> None:
    for value in (["a b", "$(x)"], ["it's"], ["key=value:NoSchedule"], []):
        key, _, text = shlex.split(word("on.x", value))[0].partition("=")
        assert key == "on.x"
        assert load(None, ["script=x.py", f"args={text}"]).spec.args == value
