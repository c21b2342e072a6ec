"""Facts and rules -> the cause of a problem, and its remedy."""
