"""The kubectl command that a remedy starts with."""

import shlex


def kubectl(context: str | None, namespace: str | None = None) -> str:
    """Quoted for a shell. No context: the current one of the kubeconfig or the pod."""
    argv = ["kubectl", *(["--context", context] if context else []), *(["-n", namespace] if namespace else [])]
    return shlex.join(argv)
