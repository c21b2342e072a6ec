"""The lines of metrics.jsonl as TensorBoard shows them."""

from pathlib import Path

from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.summary.writer.event_file_writer import EventFileWriter

from stoker.rundir import Record

TAGS = {
    "loss": "train/loss",
    "val_loss": "eval/loss",
    "lr": "train/learning_rate",
    "grad_norm": "train/grad_norm",
    "tokens_per_second": "speed/tokens_per_second",
    "samples_per_second": "speed/samples_per_second",
    "mfu": "speed/mfu",
    "data_wait": "speed/data_wait",
    "memory_gib": "memory/peak_gib",
    "loss_scale": "train/loss_scale",
    "skipped": "train/skipped",
}
PART = "loss_"  # parts of a loss have names of their own for each objective


class TensorBoard:
    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._writer = EventFileWriter(str(folder))

    def add(self, record: Record) -> None:
        values = {tag: value for key, value in record.items() if value is not None and (tag := _tag(key))}
        for layer, (largest, smallest) in enumerate(record.get("attention", [])):
            values[f"activations/layer{layer}_attention_weight_max"] = largest
            values[f"activations/layer{layer}_attention_weight_min"] = smallest
        for name, stats in record.get("parameters", {}).items():
            values |= {f"{kind}/{name}": value for kind, value in stats.items()}
        summary = Summary(value=[Summary.Value(tag=tag, simple_value=value) for tag, value in values.items()])
        self._writer.add_event(Event(wall_time=record["time"], step=record["step"], summary=summary))

    def close(self) -> None:
        self._writer.close()


def _tag(key: str) -> str | None:
    return TAGS.get(key) or (f"losses/{key}" if key.startswith(PART) else None)
