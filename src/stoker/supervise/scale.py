"""Reads and writes how many nodes a run should have, when that was changed after its launch.

    .members/nodes

`python -m stoker.supervise.scale RUN_DIR 1..4` changes it, in a pod that has the run directory: `stoker scale` runs it
there. Without a number it changes nothing, checks that it could, and prints the current number.
The leader checks the file while the run trains; it overrides the number that the supervisors were started with.
"""

import json
import sys
from pathlib import Path

from stoker.rundir import RunDir, refresh_folder, write_atomic
from stoker.rundir.records import RECORD_BYTES
from stoker.spec import contract
from stoker.spec.change import with_nodes
from stoker.spec.errors import UserError
from stoker.spec.files import read_regular
from stoker.spec.on import Nodes


def main() -> int:
    folder, *numbers = sys.argv[1:]
    try:
        was = request_nodes(RunDir(Path(folder)), *map(Nodes, numbers))
    except (UserError, ValueError, OSError) as e:
        print(f"stoker: {e}", file=sys.stderr)
        return contract.EXIT_USER
    print(json.dumps({"was": was}))
    return contract.EXIT_DONE


def requested_nodes(run: RunDir) -> Nodes | None:
    """None if the number was not changed since the launch."""
    folder = run.path / contract.MEMBERS_DIR
    try:
        refresh_folder(folder)
        return Nodes(read_regular(folder / contract.NODES_FILE, max_bytes=RECORD_BYTES, follow_links=False).decode())
    except (OSError, ValueError):
        return None


def request_nodes(run: RunDir, nodes: Nodes | None = None) -> str:
    """Returns the number before. Writes the spec first: its number is for readers and for the next launch."""
    spec = run.any_spec()
    was = requested_nodes(run) or spec.on.node_range
    if spec.on.is_scalable:  # otherwise the supervisors were started by hand, and the spec has no number for them
        run.write_spec(with_nodes(spec, nodes or was))
    if nodes:
        folder = run.path / contract.MEMBERS_DIR
        folder.mkdir(exist_ok=True, mode=0o700)
        write_atomic(folder / contract.NODES_FILE, f"{nodes}\n")
    return str(was)


if __name__ == "__main__":
    sys.exit(main())
