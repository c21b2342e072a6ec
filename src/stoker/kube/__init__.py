"""The one Kubernetes client: apply, get, list, watch, logs, exec, delete. Knows nothing of training.

Heavy to import (an HTTP client): verbs that may do without a cluster load what uses it by name.
"""

from stoker.kube.cluster import Cluster, Object
from stoker.kube.connect import connect, namespace_of
from stoker.kube.refusals import Forbidden, HookSilent, LoggedOut, Lost, Refused, Unreachable

__all__ = [
    "Cluster",
    "Forbidden",
    "HookSilent",
    "LoggedOut",
    "Lost",
    "Object",
    "Refused",
    "Unreachable",
    "connect",
    "namespace_of",
]
