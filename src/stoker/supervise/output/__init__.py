"""What the workers print: read, redacted, logged, and searched for losses and import errors."""
