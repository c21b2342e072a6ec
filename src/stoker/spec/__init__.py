"""What a run is: its spec, the presets, and what launcher, supervisor and trainer agree on. pydantic and yaml only."""
