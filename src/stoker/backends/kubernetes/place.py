"""Where a run is in a cluster: its place.json."""

from dataclasses import asdict, dataclass
from typing import Literal

from stoker.rundir import RunDir
from stoker.spec import contract
from stoker.spec.errors import UserError


@dataclass(frozen=True, kw_only=True, slots=True)
class ClusterPlace:
    kind: Literal["kubernetes"] = "kubernetes"
    context: str | None
    namespace: str
    job: str
    """The kind of job."""
    run: str
    volume: str
    image: str
    where: str = ""

    @property
    def folder(self) -> str:
        """The run directory, in a pod."""
        return f"{contract.MOUNT}/{contract.VOLUME_RUNS}/{self.run}"

    def write(self, run: RunDir) -> None:
        context = f" of context {self.context}" if self.context else ""
        folder = f"{contract.VOLUME_RUNS}/{self.run}"
        where = f"in {folder} on volume claim '{self.volume}' in namespace {self.namespace}{context}"
        run.write_place(asdict(self) | {"where": where})


def place_of(run: RunDir) -> ClusterPlace:
    """Of a run that was launched in a cluster."""
    place = run.place(ClusterPlace)
    if place is None:
        raise UserError(f"run '{run.name}' was not launched in a cluster", remedy="See it with: stoker status")
    return place
