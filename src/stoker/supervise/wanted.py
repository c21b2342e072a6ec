"""How many nodes a run is to have, where that was said anew since it was launched.

    .members/nodes

`python -m stoker.supervise.wanted RUN_DIR 1..4` says it, in a pod that sees the run: `stoker scale` has it done there.
Without a number nothing is said anew: whether it could be, and what it is now, comes out.
The leader looks for it while the run goes on; it counts more than what the supervisors were started with.
"""

import json
import sys
from pathlib import Path

from stoker.rundir import RunDir, look_anew, write_atomic
from stoker.rundir.files import read_regular
from stoker.rundir.records import RECORD_BYTES
from stoker.spec import contract
from stoker.spec.change import with_nodes
from stoker.spec.errors import UserError
from stoker.spec.on import Nodes


def main() -> int:
    folder, *words = sys.argv[1:]
    try:
        was = want(RunDir(Path(folder)), *map(Nodes, words))
    except (UserError, ValueError, OSError) as e:
        print(f"stoker: {e}", file=sys.stderr)
        return contract.EXIT_USER
    print(json.dumps({"was": was}))
    return contract.EXIT_DONE


def wanted(run: RunDir) -> Nodes | None:
    """None: nobody has said it anew."""
    folder = run.path / contract.MEMBERS_DIR
    try:
        look_anew(folder)
        return Nodes(read_regular(folder / contract.NODES_FILE, max_bytes=RECORD_BYTES).decode())
    except (OSError, ValueError):
        return None


def want(run: RunDir, nodes: Nodes | None = None) -> str:
    """What it was before. The spec comes first: its number is only for readers, and for the next launch."""
    spec = run.any_spec()
    was = wanted(run) or spec.on.nodes
    if spec.on.kind != "local":  # else the supervisors were started by hand, and their number is theirs alone
        run.write_spec(with_nodes(spec, nodes or was))
    if nodes:
        folder = run.path / contract.MEMBERS_DIR
        folder.mkdir(exist_ok=True, mode=0o700)
        write_atomic(folder / contract.NODES_FILE, f"{nodes}\n")
    return str(was)


if __name__ == "__main__":
    sys.exit(main())
