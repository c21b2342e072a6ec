"""What launcher, supervisor, trainer and readers agree on: file names, environment, exit codes."""

from typing import Final

# Exit codes of the CLI, the supervisor and the workers.
EXIT_DONE: Final = 0
EXIT_NO: Final = 1  # of a check: what was asked is not so
EXIT_USER: Final = 2
EXIT_FAILED: Final = 3
EXIT_SAVED: Final = 75  # EX_TEMPFAIL: saved and ready to go on
EXIT_INTERRUPTED: Final = 130
EXIT_AGAIN: Final = 203  # of a supervisor in a pod: start it again. Above 127: a PyTorchJob retries no other

# The run directory.
SPEC_FILE: Final = "spec.yaml"
DATA_FILE: Final = "data.json"
ORIGINS_FILE: Final = "origins.json"
METRICS_FILE: Final = "metrics.jsonl"
EVENTS_FILE: Final = "events.jsonl"
EXIT_FILE: Final = "exit.json"
LOCK_FILE: Final = "lock"
PLACE_FILE: Final = "place.json"  # of a run that lives in a cluster: where
SEEN_FILE: Final = "seen.json"  # beside it: what its records last said
MEMBERS_DIR: Final = ".members"  # hidden: how the nodes of a run find each other is no part of its records
NODES_FILE: Final = "nodes"  # in it: how many there are to be, where that was said anew since the launch
LEADER_FILE: Final = "leader.json"  # in it: where the node listens that leads
TOKENIZER_DIR: Final = "tokenizer"
PREPARED_DIR: Final = ".prepared"  # beside the runs: token sets by their keys
LEDGER_DIR: Final = "ledger"
LOGS_DIR: Final = "logs"
SUPERVISOR_LOG: Final = "supervisor.log"
TENSORBOARD_DIR: Final = "tb"
CHECKPOINTS_DIR: Final = "checkpoints"
EXPORT_DIR: Final = "export"
HELD_DIR: Final = ".origins"  # hidden: checkpoints of other runs are not sent to a store along with this one

CHECKPOINT_GLOB: Final = "step-" + "[0-9]" * 9  # a copy that somebody made beside it is not ours to judge or delete

# Inside a checkpoint.
MANIFEST_FILE: Final = "manifest.json"

# Environment of a worker: torchrun's own names, so that any torchrun script runs unchanged, and ours.
ENV_RUN_DIR: Final = "STOKER_RUN_DIR"  # for workers that are not ours: the run directory is theirs too
ENV_ATTEMPT: Final = "STOKER_ATTEMPT"
ENV_STORE_FD: Final = "STOKER_STORE_FD"  # of rank 0: the socket where it serves the store that workers meet at

# Environment of a supervisor in a pod.
ENV_NODE: Final = "STOKER_NODE"  # index of the node
ENV_ADDRESS: Final = "STOKER_ADDRESS"  # where the other nodes reach it
ENV_PORT: Final = "STOKER_PORT"
ENV_POD: Final = "STOKER_POD"
ENV_K8S_NODE: Final = "STOKER_K8S_NODE"

# Kubernetes.
NODES_PORT: Final = 29400  # supervisors of a run talk to each other here
CONTAINER: Final = "pytorch"  # a PyTorchJob asks for this name
WORKDIR: Final = "/app"  # the user's code, in an image that was built for a run
MOUNT: Final = "/stoker"  # the run's volume, in every pod
VOLUME_RUNS: Final = "runs"  # below it
VOLUME_DATA: Final = "data"
VOLUME_MODELS: Final = "models"
KEY_LENGTH: Final = 32  # characters of a content key in the name of a folder there
LABEL_MANAGED_BY: Final = "app.kubernetes.io/managed-by"
MANAGED_BY: Final = "stoker"
LABEL_RUN: Final = "stoker.dev/run"
LABEL_READER: Final = "stoker.dev/reader"
LONGEST_RUN: Final = 45  # characters of a run's name there: a JobSet's pod is called RUN-node-0-INDEX-abcde, at most 63
