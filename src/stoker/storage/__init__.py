"""Runs that are kept in an object store: the store itself, a working copy here, and what goes between them."""
