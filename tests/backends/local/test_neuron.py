import json
from pathlib import Path

import pytest

from stoker.backends.local import neuron

REPORT = {
    "neuron_runtime_data": [
        {
            "pid": 41,
            "report": {
                "neuroncore_counters": {
                    "period": 1.0,
                    "neuroncores_in_use": {
                        "0": {"neuroncore_utilization": 90.0},
                        "1": {"neuroncore_utilization": 70.0},
                    },
                },
                "memory_used": {"neuron_runtime_used_bytes": {"host": 1, "neuron_device": 2048}},
            },
        },
        {"pid": 42, "error": "gone", "report": {}},
    ]
}
NO_PID = {"neuron_runtime_data": [{"report": {"neuroncore_counters": {"neuroncores_in_use": {"0": {}}}}}]}


def test_the_cores_of_a_process_are_one_row_with_their_mean_utilization() -> None:
    cores = neuron.of_any(neuron.parse(REPORT), {7, 41})
    assert cores is not None
    assert (cores.index, cores.use, cores.memory) == ("0-1", 80.0, 2048)
    assert neuron.of_any(neuron.parse(REPORT), {42}) is None


@pytest.mark.parametrize(
    "report", ["", "[]", '{"neuron_runtime_data": 7}', '{"neuron_runtime_data": [{"report": 7}]}', json.dumps(NO_PID)]
)
def test_a_report_of_another_form_has_no_cores(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, report: str) -> None:
    program = tmp_path / "neuron-monitor"
    program.write_text(f"#!/bin/sh\necho '{report}'\n")
    program.chmod(0o755)
    monkeypatch.setattr(neuron, "SEARCH_PATH", str(tmp_path))
    monkeypatch.setattr(neuron, "glob", lambda _: ["/dev/neuron0"])
    assert neuron.read_cores() == {}


def test_a_machine_without_neuron_devices_has_no_cores() -> None:
    assert neuron.read_cores() == {}
