"""Reads runs: find them, diagnose them, audit them, look into a step. Nothing here writes a file."""
