"""What a run did and does, read from its directory; nothing here writes to a run."""
