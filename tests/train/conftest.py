"""Fixtures for tests of training."""

from tests.training import alone, one_thread, worker

__all__ = ["alone", "one_thread", "worker"]
