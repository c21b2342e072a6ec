"""Files from one machine to another over a pipe: resumed after an interruption, verified by hash, never sent twice.

One end sends, the other receives. Either may run in a pod, as `python3 -m stoker.backends.transfer`: it needs only the
standard library.
"""
