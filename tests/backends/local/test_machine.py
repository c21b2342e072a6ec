import os

import pytest

from stoker.backends.local import machine


def test_the_facts_of_this_machine_make_sense() -> None:
    facts = machine.facts()
    assert 1 <= facts.cores <= (os.cpu_count() or 1)
    assert facts.torch is not None


@pytest.mark.parametrize(
    ("variable", "visible"),
    [
        (None, ("a", "b", "c")),
        ("", ()),
        ("-1", ()),
        ("2", ("c",)),
        ("2,0", ("c", "a")),
        ("0,7", ("a",)),
        ("GPU-1f,GPU-2e", ("a", "b")),
    ],
)
def test_only_the_gpus_that_cuda_visible_devices_names_count(
    monkeypatch: pytest.MonkeyPatch, variable: str | None, visible: tuple[str, ...]
) -> None:
    if variable is None:
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    else:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", variable)
    assert machine.visible(("a", "b", "c")) == visible


def test_a_package_that_is_not_installed_has_no_version() -> None:
    assert machine.version("no-such-package-of-ours") is None
