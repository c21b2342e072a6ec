"""What a run is: its spec, the presets, and what launcher, supervisor and trainer share. pydantic and yaml only."""
