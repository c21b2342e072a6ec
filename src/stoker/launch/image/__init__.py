"""Images without a daemon: the user's code and Stoker as a layer on a base image, sent straight to a registry."""
