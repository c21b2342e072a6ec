"""Several nodes of one run: which of them leads, how they join, leave and talk to each other."""
