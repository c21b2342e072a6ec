"""What Stoker needs of an image's Python, by its own metadata."""

from importlib import metadata

from packaging.requirements import Requirement

from stoker.launch.image.base import OWN_BASES, Base
from stoker.launch.image.reference import Reference
from stoker.spec.errors import UserError
from stoker.spec.run import AnySpec, RunSpec

EXTRA = "train"
ETCD = "etcd"
NEURON = "torch-neuronx"  # its torch is older, and the trainer is made to run on that one too
LEAST_NEURON_TORCH = "2.9"


def needs(spec: AnySpec) -> list[Requirement]:
    """A script needs the supervisor alone; a model of ours the trainer's packages too. torch is the base's."""
    extras = (EXTRA,) if isinstance(spec, RunSpec) else (ETCD,) if spec.on.rendezvous == "etcd" else ()
    return [one for one in _required() if one.name != "torch" and applies(one, extras)]


def check_torch(spec: AnySpec, base: Base, name: Reference) -> None:
    wanted = next(one for one in _required() if one.name == "torch")
    if base.torch is None:
        raise UserError(
            f"image {name} has no torch for its Python {base.python}",
            remedy=f"Choose a base that has it (RUN pip install 'stoker[{EXTRA}]' in its Dockerfile), {OWN_BASES}",
        )
    if NEURON in base.packages:
        wanted = Requirement(f"torch>={LEAST_NEURON_TORCH}")
    if isinstance(spec, RunSpec) and not base.has(wanted):
        raise UserError(
            f"image {name} has torch {base.torch}, and the trainer needs {wanted}",
            remedy=f"Choose a base with a newer torch, {OWN_BASES}",
        )


def check_etcd(spec: AnySpec, base: Base, name: Reference) -> None:
    """torch speaks to etcd through a package that is published as source alone, so that no image is given it."""
    if spec.on.rendezvous != "etcd":
        return
    for one in _required():
        if applies(one, (ETCD,)) and not applies(one, ()) and not base.has(one):
            raise UserError(
                f"image {name} has no {one.name}, and on.rendezvous is etcd",
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
            "Stoker runs from a folder that is not installed, so nobody knows what an image needs",
            remedy="Run there: pip install -e .",
        ) from None
