"""Runs that are kept in an object store: the store, the working copies on this machine, uploads and downloads."""
