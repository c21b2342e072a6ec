"""Starts the workers of this node for an attempt: as child processes, or under torch's elastic agent."""

import os
import socket
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from stoker.rundir import RunDir
from stoker.spec import contract
from stoker.spec.run import AnySpec, ScriptSpec
from stoker.supervise.output.log_file import LogFile
from stoker.supervise.output.loss_curve import LossCurve
from stoker.supervise.output.reader import Echo, OnOutput, OutputReader
from stoker.supervise.workers import torch_agent
from stoker.supervise.workers.environment import (
    LOOPBACK,
    RankAssignment,
    redactor,
    secret_values,
    worker_environments,
)
from stoker.supervise.workers.group import WorkerGroup
from stoker.supervise.workers.network_interface import interface_variables
from stoker.supervise.workers.processes import WorkerProcesses, start_process
from stoker.supervise.workers.store_server import StoreServer, is_store_expected


@dataclass(frozen=True, kw_only=True, slots=True)
class WorkerLauncher:
    """What this node starts in every attempt."""

    run: RunDir
    command: Sequence[str]
    workers: int
    echo: bool = False
    """Also print every line of the workers on standard output."""
    address: str = LOOPBACK
    """The address at which other nodes reach this node."""

    def start(
        self,
        spec: AnySpec,
        assignment: RankAssignment,
        *,
        note: Callable[[str], None],
        on_output: OnOutput | None = None,
        listener: socket.socket | None = None,
    ) -> WorkerGroup:
        """`on_output` gets the lines that rank 0 prints, `note` messages for the user.

        `listener`: the socket of torch's store, if it is on this node.
        """
        secrets = secret_values(spec)
        if endpoint := spec.on.etcd_endpoint:
            return self._start_torch_agent(spec, assignment, secrets, endpoint, note=note, on_output=on_output)
        environments = worker_environments(
            self._base_environment(assignment),
            spec.env | secrets,
            run=self.run,
            assignment=assignment,
            workers=self.workers,
            max_restarts=spec.on.max_restarts,
        )
        readers, redact = {}, redactor(spec)
        for rank in range(assignment.first_rank, assignment.first_rank + self.workers):
            listeners = [on_output] if on_output and rank == 0 else []
            listeners += [Echo(b"[%d] " % rank)] if self.echo else []
            readers[rank] = OutputReader(LogFile(self.run.log(rank), note=note), redact, *listeners)
        if not isinstance(spec, ScriptSpec):
            return WorkerProcesses(self.command, environments, readers, listener=listener)
        store = None
        if listener and assignment.store_served:
            at_once = is_store_expected(spec, world=assignment.world)
            store = StoreServer(listener, os.environ | spec.env, at_once=at_once, note=note)
        return WorkerProcesses(self.command, environments, readers, store=store)

    def _start_torch_agent(
        self,
        spec: AnySpec,
        assignment: RankAssignment,
        secrets: dict[str, str],
        endpoint: str,
        *,
        note: Callable[[str], None],
        on_output: OnOutput | None,
    ) -> WorkerGroup:
        """Rank 0 may run on any node, so every node listens for its output."""
        scratch = tempfile.TemporaryDirectory(prefix="stoker-agent-")
        command = torch_agent.command(
            self.command,
            endpoint=endpoint,
            id=f"{self.run.name}-{assignment.attempt}-{assignment.master_port}",  # another run may have the same name
            nodes=assignment.nodes,
            workers=self.workers,
            address=self.address if assignment.nodes > 1 else LOOPBACK,
            scratch=scratch.name,
        )
        run_variables = {contract.ENV_RUN_DIR: str(self.run.path), contract.ENV_ATTEMPT: str(assignment.attempt)}
        environment = torch_agent.environment(self._base_environment(assignment), spec.env | secrets | run_variables)
        on_output = on_output or LossCurve(self.run, world=assignment.world).add
        logs = torch_agent.RankLogs(self.run, node=assignment.node_rank, note=note, on_output=on_output)
        reader = OutputReader(logs, redactor(spec), *([Echo(b"")] if self.echo else []))
        process = start_process(command, environment, reader.write_end)
        reader.start()
        ranks = range(assignment.first_rank, assignment.first_rank + self.workers)
        id = environment[torch_agent.ENV_AGENT]
        return torch_agent.TorchAgent(process, reader, ranks, scratch=scratch, id=id)

    def _base_environment(self, assignment: RankAssignment) -> dict[str, str]:
        return os.environ | interface_variables(self.address, nodes=assignment.nodes, environment=os.environ)
