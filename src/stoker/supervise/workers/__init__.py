"""The worker processes of an attempt: started together, watched together, ended together."""
