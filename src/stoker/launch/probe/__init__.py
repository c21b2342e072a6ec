"""What lies between the nodes of a run: an agent in each pod, and what has them measure each other in turn."""
