"""What a terminal shows while something takes long; plain lines, now and then, where there is no terminal."""
