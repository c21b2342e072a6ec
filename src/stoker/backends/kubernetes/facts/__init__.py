"""Facts about a run from its cluster, for the rules of `stoker why`."""
