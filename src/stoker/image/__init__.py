"""Container images without a daemon: the user's code and Stoker as a layer on a base image, pushed to a registry."""
