"""What launcher, supervisor, trainer and readers agree on: file names, environment, exit codes."""

from typing import Final

# Exit codes of the CLI, the supervisor and the workers.
EXIT_DONE: Final = 0
EXIT_NO: Final = 1  # of a check that found problems
EXIT_USER: Final = 2
EXIT_FAILED: Final = 3
EXIT_SAVED: Final = 75  # EX_TEMPFAIL: saved, and can be resumed
EXIT_INTERRUPTED: Final = 130
EXIT_AGAIN: Final = 203  # of a supervisor in a pod: restart it. A PyTorchJob retries only codes above 127

ENV_RUNS: Final = "STOKER_RUNS"  # the folder of the runs, where a command does not name one
RUNS_DIR: Final = "runs"  # and without that variable

# The run directory.
SPEC_FILE: Final = "spec.yaml"
DATA_FILE: Final = "data.json"
ORIGINS_FILE: Final = "origins.json"
METRICS_FILE: Final = "metrics.jsonl"
EVENTS_FILE: Final = "events.jsonl"
EXIT_FILE: Final = "exit.json"
LOCK_FILE: Final = "lock"
PLACE_FILE: Final = "place.json"  # of a run in a cluster: where it is
SEEN_FILE: Final = "seen.json"  # beside it: the last known state of that run
MEMBERS_DIR: Final = ".members"  # hidden: how the nodes of a run find each other is not part of its records
NODES_FILE: Final = "nodes"  # in it: how many nodes are wanted, when that was changed after the launch
LEADER_FILE: Final = "leader.json"  # in it: the address of the leading node
TOKENIZER_DIR: Final = "tokenizer"
PREPARED_DIR: Final = ".prepared"  # beside the runs: token sets by their keys
LEDGER_DIR: Final = "ledger"
LOGS_DIR: Final = "logs"
SUPERVISOR_LOG: Final = "supervisor.log"
TENSORBOARD_DIR: Final = "tb"
CHECKPOINTS_DIR: Final = "checkpoints"
EXPORT_DIR: Final = "export"
ORIGINS_DIR: Final = ".origins"  # hidden: checkpoints of other runs are not sent to a store along with this one

CHECKPOINT_GLOB: Final = "step-" + "[0-9]" * 9  # not the copies that users make beside them

# Inside a checkpoint.
MANIFEST_FILE: Final = "manifest.json"

# Environment of a worker: torchrun's own names, so that any torchrun script runs unchanged, and ours.
ENV_RUN_DIR: Final = "STOKER_RUN_DIR"  # for scripts: they may write to the run directory too
ENV_ATTEMPT: Final = "STOKER_ATTEMPT"
ENV_STORE_FD: Final = "STOKER_STORE_FD"  # of rank 0: the socket of the TCPStore that it serves

# What a node runs.
SUPERVISOR_MODULE: Final = "stoker.supervise"
# glibc returns the pages of every large tensor to the kernel, and each step faults them in again. Keep them instead.
MALLOC_ENV: Final = {
    "MALLOC_MMAP_MAX_": "0",
    "MALLOC_TRIM_THRESHOLD_": str(2**40),
    "MALLOC_TOP_PAD_": str(64 * 2**20),
}

# Environment of a supervisor in a pod.
ENV_NODE: Final = "STOKER_NODE"  # index of the node
ENV_ADDRESS: Final = "STOKER_ADDRESS"  # where other nodes reach it
ENV_PORT: Final = "STOKER_PORT"
ENV_POD: Final = "STOKER_POD"
ENV_K8S_NODE: Final = "STOKER_K8S_NODE"

# Kubernetes.
NODES_PORT: Final = 29400  # supervisors of a run connect here
CONTAINER: Final = "pytorch"  # the name that a PyTorchJob requires
WORKDIR: Final = "/app"  # of the user's code, in an image built for a run
MOUNT: Final = "/stoker"  # the run's volume, in every pod
VOLUME_RUNS: Final = "runs"  # below it
VOLUME_DATA: Final = "data"
VOLUME_MODELS: Final = "models"
KEY_LENGTH: Final = 32  # characters of a content key in the name of a folder there
LABEL_MANAGED_BY: Final = "app.kubernetes.io/managed-by"
MANAGED_BY: Final = "stoker"
LABEL_RUN: Final = "stoker.dev/run"
LABEL_READER: Final = "stoker.dev/reader"
SCALE_MODULE: Final = "stoker.supervise.scale"  # python -m …: changes the number of nodes of a run
MAX_NAME: Final = 100  # characters of a run's name
SUFFIX_LENGTH: Final = 5  # of what makes a name unique: -xxxx
MAX_RUN_NAME: Final = 45  # characters in a cluster: a JobSet's pod is called RUN-node-0-INDEX-abcde, at most 63
