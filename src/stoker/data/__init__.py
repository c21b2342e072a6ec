"""Text to token shards, and the order of samples. numpy, pyarrow and tokenizers; no torch."""
