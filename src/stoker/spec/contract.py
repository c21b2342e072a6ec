"""What launcher, supervisor, trainer and readers agree on: file names, environment, exit codes."""

from typing import Final

# Exit codes of the CLI, the supervisor and the workers.
EXIT_DONE: Final = 0
EXIT_USER: Final = 2
EXIT_FAILED: Final = 3
EXIT_SAVED: Final = 75  # EX_TEMPFAIL: saved and ready to go on
EXIT_INTERRUPTED: Final = 130

# The run directory.
SPEC_FILE: Final = "spec.yaml"
DATA_FILE: Final = "data.json"
ORIGINS_FILE: Final = "origins.json"
METRICS_FILE: Final = "metrics.jsonl"
EVENTS_FILE: Final = "events.jsonl"
EXIT_FILE: Final = "exit.json"
LOCK_FILE: Final = "lock"
TOKENIZER_DIR: Final = "tokenizer"
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
