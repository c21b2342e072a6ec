"""The agent in each pod, `python3 -m stoker.net.agent`: reports its own network and measures links on request."""
