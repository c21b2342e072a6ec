"""The packages that Stoker needs in an image, from its own metadata."""

from importlib import metadata

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from stoker.image.base import OWN_BASES, Base
from stoker.image.reference import Reference
from stoker.spec.errors import UserError
from stoker.spec.run import AnySpec, RunSpec

EXTRA = "train"
ETCD = "etcd"
NEURON = "torch-neuronx"  # it pins an older torch, which the trainer supports too
MIN_NEURON_TORCH = "2.9"
TO_PREPARE = ("numpy", "tokenizers", "huggingface-hub")  # to prepare text, which a script does not do


def needs(spec: AnySpec) -> list[Requirement]:
    """A script needs the supervisor only; a model of Stoker the trainer's packages too. torch comes with the base."""
    if isinstance(spec, RunSpec):
        return [need for need in _required() if need.name != "torch" and applies(need, (EXTRA,))]
    extras = (ETCD,) if spec.on.etcd_endpoint else ()
    return [need for need in _required() if canonicalize_name(need.name) not in TO_PREPARE and applies(need, extras)]


def check_torch(spec: AnySpec, base: Base, name: Reference) -> None:
    wanted = next(need for need in _required() if need.name == "torch")
    if base.torch is None:
        raise UserError(
            f"image {name} has no torch for its Python {base.python}",
            remedy=f"Choose a base that has it (RUN pip install 'stoker[{EXTRA}]' in its Dockerfile), {OWN_BASES}",
        )
    if NEURON in base.packages:
        wanted = Requirement(f"torch>={MIN_NEURON_TORCH}")
    if isinstance(spec, RunSpec) and not base.has(wanted):
        raise UserError(
            f"image {name} has torch {base.torch}, and the trainer needs {wanted}",
            remedy=f"Choose a base with a newer torch, {OWN_BASES}",
        )


def check_etcd(spec: AnySpec, base: Base, name: Reference) -> None:
    """torch needs a package for etcd that has no wheel, so it cannot be added to an image."""
    if not spec.on.etcd_endpoint:
        return
    for need in _required():
        if applies(need, (ETCD,)) and not applies(need, ()) and not base.has(need):
            raise UserError(
                f"image {name} has no {need.name}, and on.rendezvous is etcd",
                remedy=f"Choose a base that has it (RUN pip install 'stoker[{ETCD}]' in its Dockerfile)",
            )


def applies(need: Requirement, extras: tuple[str, ...], environment: dict[str, str] | None = None) -> bool:
    if need.marker is None:
        return True
    return any(need.marker.evaluate({**(environment or {}), "extra": extra}) for extra in ("", *extras))


def _required() -> list[Requirement]:
    try:
        return [Requirement(line) for line in metadata.requires("stoker") or []]
    except metadata.PackageNotFoundError:
        raise UserError(
            "Stoker runs from a folder that is not installed, so its requirements are unknown",
            remedy="Run there: pip install -e .",
        ) from None
