"""The Kubernetes client: apply, get, list, watch, logs, exec, delete. Independent of training.

Slow to import (an HTTP client): commands that may not need a cluster import it lazily.
"""

from stoker.kube.cluster import Cluster, Object
from stoker.kube.connect import connect, namespace_of
from stoker.kube.errors import (
    CannotExecute,
    ClusterError,
    ConnectionLost,
    Forbidden,
    Invalid,
    NotLoggedIn,
    NotSynced,
    Refused,
    Unreachable,
    WebhookUnavailable,
)

__all__ = [
    "CannotExecute",
    "Cluster",
    "ClusterError",
    "ConnectionLost",
    "Forbidden",
    "Invalid",
    "NotLoggedIn",
    "NotSynced",
    "Object",
    "Refused",
    "Unreachable",
    "WebhookUnavailable",
    "connect",
    "namespace_of",
]
