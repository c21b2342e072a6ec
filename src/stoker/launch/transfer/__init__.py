"""Files from one machine to another over a pipe: resumed after a cut, checked by content, never sent twice.

One end sends, the other receives; either may be the one in a pod, where it runs as `python3 -m stoker.launch.transfer`
and needs nothing but the standard library.
"""
