"""One process per node, like torchrun: starts the workers, passes signals on, restarts after a crash. No torch."""
