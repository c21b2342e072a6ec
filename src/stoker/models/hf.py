"""Folders in the format of transformers: config.json, and weights in safetensors or .bin files, whole or sharded.

Tensors are read and written one file at a time, and a folder must hold the model that its config.json describes.
"""

import json
import math
import pickle
import warnings
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from stoker.models import model_spec
from stoker.models.checkpoint_reader import refuse_compressed
from stoker.models.initial_weights import ParameterBlock, draw
from stoker.spec.bounded import parse_json
from stoker.spec.errors import UserError, first_line
from stoker.spec.files import NotRegularFile, check_regular
from stoker.spec.hf_config import CONFIG_FILE, RESTORE, read_json
from stoker.spec.model import Model

WEIGHTS = ("model.safetensors", "pytorch_model.bin")  # each may be in shards, with an index beside them
MAX_LISTED = 5  # names in an error
MAX_HEADER_BYTES = 100_000_000  # safetensors' own limit


def read_weights(folder: Path, shape: Model, model: nn.Module) -> None:
    """Fill the model; the folder must hold every tensor, and no other."""
    fill(folder, shape, dict(model.named_parameters()))


@torch.no_grad()
def fill(folder: Path, shape: Model, wanted: Mapping[str, Tensor], *, partial: bool = False) -> None:
    """Fill these tensors from the folder; with `partial` it may hold others, which are ignored."""
    missing, unknown, misshapen = dict.fromkeys(wanted), [], []
    family = model_spec(shape.family)
    tied, copies = family.tied(shape), {}
    for name, tensor in tensors(folder):
        if name in tied:
            copies[name] = tensor
            continue
        for own_name, value in (renamed(shape, name, tensor) if tensor.dim() <= 2 else {name: tensor}).items():
            if own_name not in wanted:
                unknown += [] if partial else [name]
            elif value.shape != wanted[own_name].shape or not value.is_floating_point():
                misshapen.append(f"{name} {str(value.dtype).removeprefix('torch.')} {list(tensor.shape)}")
            else:
                wanted[own_name].copy_(value)
            missing.pop(own_name, None)
    optional = [name for name in missing if name.startswith(family.optional)]
    for name in optional:
        assert family.initial is not None
        draw(ParameterBlock.whole(wanted[name]), family.initial(shape, name, wanted[name].dim()), seed=0, name=name)
    missing = {name: None for name in missing if name not in optional}
    faults = [("is missing", list(missing)), ("has the unknown", unknown), ("has another shape of", misshapen)]
    problems = "; ".join(f"{verb} {_listed(names)}" for verb, names in faults if names)
    if problems:
        raise UserError(
            f"{folder} does not hold the model of its {CONFIG_FILE}: it {problems}",
            remedy="Restore its files as they were",
        )
    for name, tensor in copies.items():
        if not torch.equal(tensor.to(wanted[tied[name]]), wanted[tied[name]]):
            raise UserError(
                f"{folder}: {name} differs from the embedding, and this model has one tensor for both",
                remedy="Train it with tie_word_embeddings",
            )


def renamed(shape: Model, name: str, tensor: Tensor) -> dict[str, Tensor]:
    """A tensor of transformers under our name; empty where we do not need it."""
    return model_spec(shape.family).from_hf({name: tensor})


def tensors(folder: Path) -> Iterator[tuple[str, Tensor]]:
    """All tensors in the folder's files, under transformers' names."""
    for file in _weight_files(folder):
        try:
            check_regular(file)
            yield from _safetensors(file) if file.suffix == ".safetensors" else _pickled(file)
        except NotRegularFile:
            raise
        except FileNotFoundError as e:
            raise UserError(f"{file} is missing, and the index names it", remedy="Restore it") from e
        except OSError as e:
            raise UserError(f"{file} cannot be read: {e.strerror or e}", remedy=RESTORE) from e
        except (SafetensorError, pickle.UnpicklingError, RuntimeError, EOFError, ValueError) as e:
            reason = _broken_tensor(file) or first_line(e)
            raise UserError(f"{file} cannot be read as tensors: {reason}", remedy=RESTORE) from e


def weight_bytes(folder: Path) -> int:
    """Size of its weight files."""
    return sum(file.stat().st_size for file in _weight_files(folder) if file.is_file())


@torch.no_grad()
def write_weights(folder: Path, shape: Model, model: nn.Module, *, dtype: torch.dtype, limit: int) -> None:
    """In safetensors files of at most `limit` bytes of tensors each; a larger tensor gets its own file."""
    to_hf = model_spec(shape.family).to_hf
    parameters = dict(model.named_parameters())
    groups = _groups({name: p.numel() * dtype.itemsize for name, p in parameters.items()}, limit)
    placed: dict[str, str] = {}
    for number, names in enumerate(groups, 1):
        file = WEIGHTS[0] if len(groups) == 1 else f"model-{number:05d}-of-{len(groups):05d}.safetensors"
        converted = {name: parameters[name].detach().to("cpu", dtype) for name in names}
        for name, tensor in converted.items():
            if not tensor.isfinite().all():
                fits = parameters[name].isfinite().all()
                raise UserError(
                    f"{name} has values that {'do not fit ' if fits else 'are no numbers in '}{dtype}",
                    remedy="Export it with --dtype fp32" if fits else "Export an earlier step with --step",
                )
        stored = to_hf(converted)
        try:
            save_file(stored, folder / file, metadata={"format": "pt"})
        except SafetensorError as e:  # raised for a full disk too
            reason = first_line(e).removeprefix("Error while serializing: ")
            raise UserError(
                f"{file} cannot be written: {reason}", remedy="Free some disk space, or choose another folder"
            ) from e
        placed |= dict.fromkeys(stored, file)
    if len(groups) > 1:
        total = sum(p.numel() for p in parameters.values()) * dtype.itemsize
        index = {"metadata": {"total_size": total}, "weight_map": placed}
        (folder / _index(WEIGHTS[0])).write_text(json.dumps(index, indent=2) + "\n")


def _groups(sizes: dict[str, int], limit: int) -> list[list[str]]:
    groups: list[list[str]] = [[]]
    filled = 0
    for name, size in sizes.items():
        if groups[-1] and filled + size > limit:
            groups.append([])
            filled = 0
        groups[-1].append(name)
        filled += size
    return groups


def _weight_files(folder: Path) -> Sequence[Path]:
    for whole in WEIGHTS:
        if (folder / whole).is_file():
            return [folder / whole]
        index = folder / _index(whole)
        if index.is_file():
            placed = read_json(index).get("weight_map")
            if not isinstance(placed, dict) or not all(isinstance(file, str) for file in placed.values()):
                raise UserError(f"{index} has no weight_map of files", remedy=RESTORE)
            files = sorted(set(placed.values()))
            for file in files:
                if Path(file).name != file:
                    raise UserError(f"{index} names {file}, which is no file beside it", remedy=RESTORE)
            return [folder / file for file in files]
    raise UserError(f"{folder} has no weights: no {' or '.join(WEIGHTS)}", remedy="Put one beside its config.json")


def _safetensors(file: Path) -> Iterator[tuple[str, Tensor]]:
    with safe_open(file, framework="pt") as opened:
        for name in opened.keys():  # noqa: SIM118 (not a mapping)
            yield name, opened.get_tensor(name)


def _broken_tensor(file: Path) -> str | None:
    """The first tensor that does not fit a damaged safetensors file, if its header can be read."""
    if file.suffix != ".safetensors":
        return None
    with open(file, "rb") as opened:
        size = int.from_bytes(opened.read(8), "little")
        available = file.stat().st_size - 8 - size
        try:
            held = (
                parse_json(opened.read(size), max_bytes=MAX_HEADER_BYTES)
                if available >= 0 and size <= MAX_HEADER_BYTES
                else {}
            )
            spans = {name: held[name]["data_offsets"] for name in held if name != "__metadata__"}
            for name, (_, stop) in sorted(spans.items(), key=lambda item: item[1][1]):
                if stop > available:
                    return f"it ends inside {name}, at {8 + size + available} of {8 + size + stop} bytes"
            for name in spans:
                start, stop = spans[name]
                bits = int("".join(filter(str.isdigit, held[name]["dtype"].partition("_")[0])) or 8)
                if math.prod(held[name]["shape"]) * bits != 8 * (stop - start):
                    return f"{name} has {stop - start} bytes, which are no {held[name]['dtype']} {held[name]['shape']}"
        except (ValueError, TypeError, LookupError, AttributeError):
            return None
    return None


def _pickled(file: Path) -> Iterator[tuple[str, Tensor]]:
    try:
        if zipfile.is_zipfile(file):
            with open(file, "rb") as opened:
                refuse_compressed(opened)
    except zipfile.BadZipFile as e:
        raise ValueError("it is damaged") from e
    try:
        with warnings.catch_warnings(action="ignore"):  # about old pickles; what cannot be read raises
            held = torch.load(file, map_location="cpu", weights_only=True)
    except (pickle.UnpicklingError, RuntimeError, EOFError, ValueError, OSError):
        raise
    except Exception as e:  # a damaged file can make torch raise anything
        raise ValueError("it is damaged") from e
    named = isinstance(held, dict) and all(isinstance(name, str) for name in held)
    if not named or not all(isinstance(tensor, Tensor) for tensor in held.values()):
        raise ValueError("it holds other things than named tensors")
    yield from held.items()


def _index(whole: str) -> str:
    return f"{whole}.index.json"


def _listed(names: Sequence[str]) -> str:
    more = len(names) - MAX_LISTED
    return ", ".join(names[:MAX_LISTED]) + (f" and {more} more" if more > 0 else "")
