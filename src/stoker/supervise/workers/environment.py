"""The environment of a worker: torchrun's variables, so that any torchrun script runs unchanged, and ours."""

import os
from collections.abc import Mapping
from dataclasses import dataclass

from stoker.rundir import RunDir
from stoker.spec import contract
from stoker.spec.run import AnySpec
from stoker.supervise.output.redact import Redactor, undeclared_secrets

LOOPBACK = "127.0.0.1"


@dataclass(frozen=True, kw_only=True, slots=True)
class RankAssignment:
    """The ranks of one node in an attempt, and where its workers meet those of the other nodes."""

    attempt: int
    restart: int
    """How many attempts of this supervisor came before."""
    world: int
    """Workers on all nodes."""
    first_rank: int
    """The lowest rank on this node."""
    node_rank: int
    """The position of this node among the nodes of the attempt."""
    nodes: int
    master_address: str
    master_port: int
    """Where torch's key-value store is served."""
    store_served: bool
    """Whether a supervisor serves the store; if not, the worker of rank 0 does."""


def single_node(*, attempt: int, restart: int, workers: int, port: int, store_served: bool) -> RankAssignment:
    """All workers on this node."""
    return RankAssignment(
        attempt=attempt,
        restart=restart,
        world=workers,
        first_rank=0,
        node_rank=0,
        nodes=1,
        master_address=LOOPBACK,
        master_port=port,
        store_served=store_served,
    )


def common_environment(base: Mapping[str, str], extra: Mapping[str, str]) -> dict[str, str]:
    """For workers, and for every process that starts them."""
    return {
        "OMP_NUM_THREADS": "1",  # torchrun's default; the launcher, which has counted the cores, sets a better value
        **base,
        "PYTHONUNBUFFERED": "1",
        "TOKENIZERS_PARALLELISM": "false",
        **extra,
    }


def worker_environments(
    base: Mapping[str, str],
    extra: Mapping[str, str],
    *,
    run: RunDir,
    assignment: RankAssignment,
    workers: int,
    max_restarts: int,
) -> list[dict[str, str]]:
    """One for each worker of this node."""
    shared = {
        **common_environment(base, extra),
        "WORLD_SIZE": str(assignment.world),
        "LOCAL_WORLD_SIZE": str(workers),
        "ROLE_WORLD_SIZE": str(assignment.world),
        "GROUP_WORLD_SIZE": str(assignment.nodes),
        "GROUP_RANK": str(assignment.node_rank),
        "ROLE_NAME": "default",
        "MASTER_ADDR": assignment.master_address,
        "MASTER_PORT": str(assignment.master_port),
        "TORCHELASTIC_RESTART_COUNT": str(assignment.restart),
        "TORCHELASTIC_MAX_RESTARTS": str(max_restarts),
        "TORCHELASTIC_RUN_ID": run.name,
        # When true, torch connects to the store and does not serve it.
        "TORCHELASTIC_USE_AGENT_STORE": str(assignment.store_served),
        contract.ENV_RUN_DIR: str(run.path),
        contract.ENV_ATTEMPT: str(assignment.attempt),
    }
    return [
        shared
        | {"LOCAL_RANK": str(local)}
        | {name: str(assignment.first_rank + local) for name in ("RANK", "ROLE_RANK")}
        for local in range(workers)
    ]


def secret_values(spec: AnySpec) -> dict[str, str]:
    """The secrets of the run that this process was given."""
    return {name: os.environ[name] for name in spec.secrets if name in os.environ}


def redactor(spec: AnySpec) -> Redactor:
    """For the output of this run's workers: masks its secrets, and variables whose names suggest that they are."""
    return Redactor([*secret_values(spec).values(), *undeclared_secrets(os.environ | spec.env)])
