"""This machine."""
