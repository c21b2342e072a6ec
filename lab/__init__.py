"""A real Kubernetes cluster on this machine, for the tests: `python -m lab up`."""
