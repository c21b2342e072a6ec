"""Stoker trains language models on your own data and looks after the run until it is done."""

__version__ = "0.1.0"
