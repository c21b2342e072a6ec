"""A token set that is trained on while it is made.

    stream.json  tokenizer/  train-00000.bin …  journal.jsonl  provenance/  (index.json, when the end is known)

One feeder at a time makes shard after shard, in the order of the data, and notes each in the journal when it is whole.
Trainers wait for the window that they need. When all is made it is a token set like any other.
"""
