import shlex

import pytest
import yaml

from stoker.diagnose.overrides import override


@pytest.mark.parametrize("value", ["plain", "it's", "\N{FIRE}", "it's \N{FIRE}", {"a": ["it's", "\N{FIRE}", 1, None]}])
def test_an_override_typed_into_a_shell_has_the_same_value(value: object) -> None:
    (argument,) = shlex.split(override("on.pod", value))
    assert "\n" not in argument
    key, _, text = argument.partition("=")
    assert (key, yaml.safe_load(text)) == ("on.pod", value)
