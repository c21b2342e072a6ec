"""A token set that is prepared while a run trains on it.

    stream.json  tokenizer/  train-00000.bin …  journal.jsonl  provenance/  (index.json, when the end is known)

One feeder at a time writes shard after shard, in the order of the data, and records each complete shard in the journal.
Trainers wait for the window that they need. A finished stream is an ordinary token set.
"""
