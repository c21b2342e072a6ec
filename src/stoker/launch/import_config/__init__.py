"""Manifests of other launchers as run files: every field is used, or named as not used. Pure."""
