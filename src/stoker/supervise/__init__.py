"""One process a node, in torchrun's place: starts the workers, passes signals on, restarts after a crash. No torch."""
