"""The network probe behind `stoker net`: an agent in each pod, which measures the links to the others when asked."""
