"""The kubectl command that a remedy begins with."""

import shlex


def kubectl(context: str | None, namespace: str | None = None) -> str:
    """As a shell takes it. None for a context: that of the kubeconfig or of the pod."""
    words = ["kubectl", *(["--context", context] if context else []), *(["-n", namespace] if namespace else [])]
    return shlex.join(words)
