"""The engine: the only package that imports torch. A worker is `python -m stoker.train RUN_DIR`."""
