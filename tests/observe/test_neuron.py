from stoker.observe import neuron

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


def test_the_cores_of_a_process_are_one_row_with_their_mean_use() -> None:
    found = neuron.of(neuron.read(REPORT), {7, 41})
    assert found is not None
    assert (found.index, found.use, found.memory) == ("0-1", 80.0, 2048)
    assert neuron.of(neuron.read(REPORT), {42}) is None


def test_where_there_is_no_such_chip_nothing_is_asked() -> None:
    assert neuron.look() == {}
