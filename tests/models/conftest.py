"""Fixtures for tests of models."""

from tests.training import one_thread, worker

__all__ = ["one_thread", "worker"]
