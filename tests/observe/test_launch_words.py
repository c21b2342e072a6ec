"""What a remedy has typed keeps all that the run had: it is read as a shell and `launch` read it."""

import shlex

from stoker.observe.launch_words import word, words
from stoker.spec.load import load
from stoker.spec.on import On

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
    assert typed(words(On(kind="kubernetes"), 4)["fewer"]).nodes.least == 1
    runtime = On(kind="kubernetes", job="trainjob", runtime="torch-distributed")
    fewer = words(runtime, 4)["fewer"].replace("N", "2")
    assert typed(f"on.job=trainjob on.runtime=torch-distributed {fewer}").nodes.fixed


def test_words_survive_a_shell() -> None:
    for value in (["a b", "$(x)"], ["it's"], ["key=value:NoSchedule"], []):
        key, _, text = shlex.split(word("on.x", value))[0].partition("=")
        assert key == "on.x"
        assert load(None, ["script=x.py", f"args={text}"]).spec.args == value
