"""Optional packages: which extra of Stoker installs each, and how one is loaded where it is used."""

import importlib
from typing import Any

from stoker.spec.errors import MissingExtra

EXTRAS = {  # package -> extra
    "torch": "train",
    "safetensors": "train",
    "tensorboard": "train",
    "pyarrow": "data",
    "h5py": "data",
    "transformers": "hf",
    "boto3": "aws",
    "botocore": "aws",
    "google": "gcp",
    "torchx": "torchx",
    "etcd": "etcd",
}


def load_extra(module: str) -> Any:
    """Import a module that is, or that uses, an optional package. Raises MissingExtra when it is not installed."""
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as e:
        if missing := missing_extra(e):
            raise missing from e
        raise


def missing_extra(error: ModuleNotFoundError) -> MissingExtra | None:
    """The message with the remedy, if the module belongs to an optional package."""
    package = (error.name or "").partition(".")[0]
    return MissingExtra(package, EXTRAS[package]) if package in EXTRAS else None
