"""Exports a model as a folder that transformers loads, with a record of how it was checked.

    config.json  generation_config.json  model.safetensors (or shards and their index)  README.md  stoker.json
    tokenizer.json  tokenizer_config.json  special_tokens_map.json

The weights are read back and must equal the model's bit for bit, rounded to the requested dtype. Then a separate
process compares the folder with transformers (see parity.py). stoker.json keeps the verdict: `proven`, `failed`, or
`unproven` when transformers is not installed.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from stoker import __version__
from stoker.data import tokenizer as tokenizer_files
from stoker.inference.atomic_folder import atomic_folder
from stoker.inference.card import card
from stoker.inference.parity import RECORD_FILE, prove
from stoker.models import hf
from stoker.models.load import LoadedModel
from stoker.rundir import Record, write_json
from stoker.rundir.checkpoint import file_facts
from stoker.spec import contract, hf_config
from stoker.spec.errors import RunFailed, UserError
from stoker.train.choices import DTYPES, Precision

SHARD_BYTES = 5 * 10**9


@dataclass(frozen=True, kw_only=True, slots=True)
class Exported:
    folder: Path
    record: Record
    """The contents of stoker.json."""

    @property
    def verdict(self) -> str:
        return str(self.record["verdict"])


def default_folder(loaded: LoadedModel) -> Path:
    if loaded.run is None or loaded.step is None:
        raise UserError(
            f"{loaded.origin} is not a checkpoint of a run", remedy="Name the folder to export to with -o DIR"
        )
    return loaded.run.path / contract.EXPORT_DIR / f"step-{loaded.step}"


def export(
    loaded: LoadedModel,
    folder: Path,
    *,
    dtype: Precision = "fp32",
    shard_bytes: int = SHARD_BYTES,
    require_proof: bool = False,
    report: Callable[[str], None] = lambda _: None,
) -> Exported:
    """Write the folder, completely or not at all; with `require_proof`, only when it is proven."""
    name = loaded.run.name if loaded.run else folder.name
    with atomic_folder(folder) as partial:
        report(f"writing {loaded.origin} as {dtype}")
        _write(loaded, partial, name=name, dtype=DTYPES[dtype], shard_bytes=shard_bytes)
        tensors = _read_back(loaded, partial, DTYPES[dtype])
        report("checking it against transformers")
        record = _origin(loaded) | {"dtype": dtype, "tensors": tensors} | prove(partial)
        record["files"] = {file.name: file_facts(file) for file in sorted(partial.iterdir())}
        write_json(partial / RECORD_FILE, record)
        if require_proof:
            _require(record)
    return Exported(folder=folder, record=record)


def _write(loaded: LoadedModel, folder: Path, *, name: str, dtype: torch.dtype, shard_bytes: int) -> None:
    tokenizer = loaded.read_tokenizer()
    end, special = tokenizer.end_id, tokenizer_files.special_tokens(tokenizer)
    begin = end if tokenizer.begin_id is None else tokenizer.begin_id
    if hf_config.hf_format(loaded.shape).names_end_token:
        special |= {"bos_token": tokenizer.begin or tokenizer.end}
        write_json(folder / "generation_config.json", {"bos_token_id": begin, "eos_token_id": end, "pad_token_id": end})
    precision = str(dtype).removeprefix("torch.")
    write_json(folder / hf_config.CONFIG_FILE, hf_config.config(loaded.shape, dtype=precision, end=end, begin=begin))
    tokenizer_files.save(tokenizer, folder)
    config_file = folder / tokenizer_files.CONFIGS[0]
    config = json.loads(config_file.read_text()) | special | {"model_max_length": loaded.shape.context}
    write_json(config_file, config)
    write_json(folder / "special_tokens_map.json", special)
    (folder / "README.md").write_text(card(loaded, name=name, dtype=dtype), encoding="utf-8")
    hf.write_weights(folder, loaded.shape, loaded.model, dtype=dtype, limit=shard_bytes)


def _read_back(loaded: LoadedModel, folder: Path, dtype: torch.dtype) -> int:
    """Compare each written tensor with the model's, bit for bit; returns their number."""
    wanted = dict(loaded.model.named_parameters())
    for name, tensor in hf.tensors(folder):
        for own_name, value in hf.renamed(loaded.shape, name, tensor).items():
            if not _same_bits(value, wanted.pop(own_name).detach().to("cpu", dtype)):
                raise RunFailed(f"{name} was not written correctly", remedy=f"Check the disk of {folder.parent}")
    assert not wanted, f"{list(wanted)} were not written"
    return len(dict(loaded.model.named_parameters()))


def _same_bits(a: Tensor, b: Tensor) -> bool:
    if a.dtype != b.dtype or a.shape != b.shape:
        return False
    as_bits = {4: torch.int32, 2: torch.int16}[a.element_size()]
    return torch.equal(a.contiguous().view(as_bits), b.contiguous().view(as_bits))


def _origin(loaded: LoadedModel) -> Record:
    run = loaded.run.name if loaded.run else None
    return {"stoker": __version__, "run": run, "step": loaded.step, "shape": loaded.shape.model_dump(mode="json")}


def _require(record: Record) -> None:
    reasons = "; ".join(record["problems"])
    if record["verdict"] == "failed":
        raise RunFailed(
            f"transformers disproves the export, and it was removed: {reasons}",
            remedy="Leave --require-proof out to keep it",
        )
    if record["verdict"] == "unproven":
        raise UserError(
            f"the export cannot be proven, and was removed: {reasons}",
            remedy="Run: pip install 'stoker[hf]', or leave --require-proof out",
        )
