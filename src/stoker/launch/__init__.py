"""From a spec to something running. Never imports the trainer: a run is launched without torch."""
