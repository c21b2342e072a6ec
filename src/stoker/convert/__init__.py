"""Converts manifests and commands of other launchers to run files. Every field is used, or listed as not used. Pure."""
