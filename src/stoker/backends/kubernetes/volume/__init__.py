"""The volume of a run: files to it and from it, through pods that mount it."""
