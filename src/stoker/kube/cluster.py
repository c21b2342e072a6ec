"""The Kubernetes API: objects are plain dicts, calls are synchronous, and a refused request raises Refused."""

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, BinaryIO, Literal

import httpx2

from stoker.kube import streams
from stoker.kube.errors import NOT_FOUND, ConnectionLost, Refused, Unreachable
from stoker.kube.kinds import KINDS, Kind
from stoker.kube.kubectl import kubectl
from stoker.kube.session import Session, lines

Object = dict[str, Any]
MANAGER = "stoker"
PAGE_SIZE = 250  # objects per response: 5,000 pods are read in twenty, and never held together
GONE = 410
WATCH_RETRY_S = 30  # how long a watch waits for a server that is restarting
REVIEW = Kind("SelfSubjectAccessReview", "authorization.k8s.io/v1", "selfsubjectaccessreviews", namespaced=False)
WHOAMI = Kind("SelfSubjectReview", "authentication.k8s.io/v1", "selfsubjectreviews", namespaced=False)
GROUPS = Kind("APIGroup", "v1", "apis", namespaced=False)
VERSION = Kind("version", "v1", "version", namespaced=False)


class Cluster:
    """Created by `connect`. Methods that take `namespace` default to the namespace of the connection."""

    def __init__(self, session: Session, *, context: str | None, namespace: str) -> None:
        self._session = session
        self._kinds = dict(KINDS)
        self.context = context
        self.namespace = namespace
        version = self._get("/version", VERSION).get("gitVersion")
        if not isinstance(version, str):
            raise self._no_api_server()
        self.version = version

    @property
    def display_name(self) -> str:
        """What messages call the cluster, such as `context lab`."""
        return self._session.name

    @property
    def kubectl(self) -> str:
        """The start of a kubectl command for objects in this namespace."""
        return kubectl(self.context, self.namespace)

    @property
    def kubectl_anywhere(self) -> str:
        """The same for objects without a namespace, or in another."""
        return kubectl(self.context)

    @property
    def server(self) -> str:
        return self._session.server

    def apply(self, object: Object, *, dry_run: bool = False) -> Object:
        """Server-side apply: creates or changes the object. Unknown fields are refused."""
        kind = self.kind(object["kind"], object["apiVersion"])
        name, namespace = object["metadata"]["name"], object["metadata"].get("namespace") or self.namespace
        params = {"fieldManager": MANAGER, "force": "true", "fieldValidation": "Strict"}
        response = self._session.request(
            "PATCH",
            f"{kind.path(namespace)}/{name}",
            params=params | ({"dryRun": "All"} if dry_run else {}),
            content=json.dumps(object).encode(),
            headers={"Content-Type": "application/apply-patch+yaml"},
            verb="patch",
            kind=kind,
            name=name,
            namespace=namespace,
        )
        applied: Object = response.json()
        return applied

    def patch(
        self, kind_name: str, name: str, patch: Object, *, namespace: str | None = None, dry_run: bool = False
    ) -> Object:
        """A merge patch: null removes a key."""
        kind, namespace = self.kind(kind_name), namespace or self.namespace
        response = self._session.request(
            "PATCH",
            f"{kind.path(namespace)}/{name}",
            params={"dryRun": "All"} if dry_run else None,
            content=json.dumps(patch).encode(),
            headers={"Content-Type": "application/merge-patch+json"},
            verb="patch",
            kind=kind,
            name=name,
            namespace=namespace,
        )
        patched: Object = response.json()
        return patched

    def get(self, kind_name: str, name: str, *, namespace: str | None = None) -> Object | None:
        """None if there is no object of that name, or no such kind."""
        kind, namespace = self.kind(kind_name), namespace or self.namespace
        try:
            return self._get(f"{kind.path(namespace)}/{name}", kind, name=name, namespace=namespace)
        except Refused as e:
            if e.code == NOT_FOUND:
                return None
            raise

    def list(
        self,
        kind_name: str,
        *,
        labels: Mapping[str, str | None] | None = None,
        fields: Mapping[str, str] | None = None,
        namespace: str | None = None,
        everywhere: bool = False,
        limit: int | None = None,
    ) -> Iterator[Object]:
        """Yields objects, a page at a time. A label of None matches any value of that label."""
        within = None if everywhere else namespace or self.namespace
        for page in self._pages(kind_name, labels, fields, within, limit):
            yield from page["items"]

    def watch(
        self,
        kind_name: str,
        *,
        labels: Mapping[str, str | None] | None = None,
        fields: Mapping[str, str] | None = None,
        namespace: str | None = None,
        seconds: float | None = None,
    ) -> Iterator[tuple[Literal["ADDED", "MODIFIED", "DELETED"], Object]]:
        """Yields existing objects as ADDED, then every change; for `seconds`, or without end.

        When the server has dropped the watch's history, the list starts again and every object is ADDED once more.
        """
        kind, namespace = self.kind(kind_name), namespace or self.namespace
        end = None if seconds is None else time.monotonic() + seconds
        version: str | None = None
        failures = 0
        while end is None or time.monotonic() < end:
            if version is None:
                for page in self._pages(kind_name, labels, fields, namespace, None):
                    version = page["metadata"]["resourceVersion"]
                    for item in page["items"]:
                        yield "ADDED", item
            left = 300 if end is None else max(1, round(end - time.monotonic()))
            params = _selectors(labels, fields) | {"watch": "1", "allowWatchBookmarks": "true"}
            params |= {"resourceVersion": str(version), "timeoutSeconds": str(left)}
            try:
                with self._session.stream(
                    kind.path(namespace), verb="watch", kind=kind, name="", namespace=namespace, params=params
                ) as response:
                    for line in lines(response):
                        failures = 0
                        event = json.loads(line)
                        if event["type"] == "ERROR":
                            version = None
                            if event["object"].get("code") != GONE:
                                time.sleep(1)
                            break
                        version = event["object"]["metadata"]["resourceVersion"]
                        if event["type"] != "BOOKMARK":
                            yield event["type"], event["object"]
            except Refused as e:
                if e.code != GONE:
                    raise
                version = None
            except (httpx2.TransportError, Unreachable):
                failures += 1
                if failures > WATCH_RETRY_S:
                    raise
                time.sleep(1)  # the server may be restarting

    def logs(
        self,
        pod: str,
        *,
        container: str | None = None,
        follow: bool = False,
        tail: int | None = None,
        since: float | None = None,
        timestamps: bool = False,
        previous: bool = False,
        namespace: str | None = None,
    ) -> Iterator[str]:
        """Yields lines as they come. `since`: the last seconds; `previous`: the container before its restart."""
        namespace = namespace or self.namespace
        flags = {"follow": follow, "timestamps": timestamps, "previous": previous}
        params = {key: "true" for key, value in flags.items() if value}
        params |= {"container": container} if container else {}
        params |= {"tailLines": str(tail)} if tail is not None else {}
        params |= {"sinceSeconds": str(max(1, round(since)))} if since is not None else {}
        path = f"{KINDS['Pod'].path(namespace)}/{pod}/log"
        try:
            with self._session.stream(
                path, verb="get", kind=LOG, name=pod, namespace=namespace, params=params
            ) as response:
                yield from lines(response)
        except httpx2.TransportError as e:
            raise ConnectionLost(f"the log of pod {pod} broke off", remedy="Run it again") from e

    def exec(
        self,
        pod: str,
        command: Sequence[str],
        *,
        container: str | None = None,
        stdin: BinaryIO | None = None,
        stdout: BinaryIO | None = None,
        stderr: BinaryIO | None = None,
        tty: Callable[[], tuple[int, int]] | None = None,
        namespace: str | None = None,
    ) -> int:
        """Runs a command in a container and returns its exit code. Streams that are None are not connected.

        `stdin` is read to its end, and the command sees that end. `tty` returns the terminal's (columns, lines).
        """
        url = f"{KINDS['Pod'].path(namespace or self.namespace)}/{pod}/exec"
        return streams.exec(
            self._session, url, pod, command, container=container, stdin=stdin, stdout=stdout, stderr=stderr, tty=tty
        )

    def delete(
        self,
        kind_name: str,
        name: str,
        *,
        namespace: str | None = None,
        foreground: bool = False,
        grace: int | None = None,
    ) -> bool:
        """False if it did not exist. `foreground`: the object stays until everything it owns is deleted."""
        kind, namespace = self.kind(kind_name), namespace or self.namespace
        options: Object = {"propagationPolicy": "Foreground" if foreground else "Background"}
        if grace is not None:
            options["gracePeriodSeconds"] = grace
        try:
            self._session.request(
                "DELETE",
                f"{kind.path(namespace)}/{name}",
                content=json.dumps(options).encode(),
                headers={"Content-Type": "application/json"},
                verb="delete",
                kind=kind,
                name=name,
                namespace=namespace,
            )
        except Refused as e:
            if e.code == NOT_FOUND:
                return False
            raise
        return True

    def delete_all(self, kind_name: str, *, labels: Mapping[str, str | None], namespace: str | None = None) -> None:
        """Deletes all objects with these labels in one request, so that they stop at the same moment."""
        kind, namespace = self.kind(kind_name), namespace or self.namespace
        self._session.request(
            "DELETE",
            kind.path(namespace),
            params=_selectors(labels, None),
            verb="deletecollection",
            kind=kind,
            namespace=namespace,
        )

    def allowed(self, verb: str, kind_name: str, *, subresource: str = "", namespace: str | None = None) -> bool:
        """Whether the server would allow you to."""
        kind = self.kind(kind_name)
        access = {"verb": verb, "group": kind.group, "resource": kind.plural, "subresource": subresource}
        if kind.namespaced:
            access["namespace"] = namespace or self.namespace
        review = {
            "apiVersion": REVIEW.version,
            "kind": REVIEW.name,
            "spec": {"resourceAttributes": {key: value for key, value in access.items() if value}},
        }
        response = self._session.request("POST", REVIEW.path(None), json=review, verb="create", kind=REVIEW)
        return bool(response.json()["status"]["allowed"])

    def user(self) -> str | None:
        """The user name that the server knows you by; None if it does not report one."""
        review = {"apiVersion": WHOAMI.version, "kind": WHOAMI.name}
        try:
            response = self._session.request("POST", WHOAMI.path(None), json=review, verb="create", kind=WHOAMI)
        except Refused:
            return None  # before Kubernetes 1.28
        name = (response.json().get("status") or {}).get("userInfo", {}).get("username")
        return name if isinstance(name, str) else None

    def serves(self, kind_name: str) -> bool:
        """Whether the server knows that kind; an operator's kinds exist once its CRDs are installed."""
        kind = self.kind(kind_name)
        try:
            return any(resource["name"] == kind.plural for resource in self._get(kind.root, kind)["resources"])
        except Refused as e:
            if e.code == NOT_FOUND:
                return False
            raise

    def groups(self) -> set[str]:
        """The API groups that the server knows, without the core group."""
        return {group["name"] for group in self._get("/apis", GROUPS)["groups"]}

    def preferred(self, group: str) -> str | None:
        """The server's preferred version of an API group; None where it does not know the group."""
        known = self._get("/apis", GROUPS)["groups"]
        return next((entry["preferredVersion"]["version"] for entry in known if entry["name"] == group), None)

    def kind(self, name: str, version: str | None = None) -> Kind:
        """Asks the server about kinds that are not in KINDS."""
        if version is None:
            return self._kinds[name]
        if known := next((kind for kind in self._kinds.values() if (kind.name, kind.version) == (name, version)), None):
            return known
        guess = Kind(name, version, name.lower() + "s")
        for resource in self._get(guess.root, guess)["resources"]:
            plural = resource["name"]
            if resource["kind"] == name and "/" not in plural:
                kind = Kind(name, version, plural, namespaced=resource["namespaced"], shared=name in self._kinds)
                self._kinds[kind.key] = kind
                return kind
        raise Refused(
            f"{self.display_name} knows no kind {name} of {version}", remedy="See: stoker check kube", code=NOT_FOUND
        )

    def _get(
        self,
        path: str,
        kind: Kind,
        *,
        name: str = "",
        namespace: str | None = None,
        params: Mapping[str, str] | None = None,
        verb: str = "get",
    ) -> Object:
        response = self._session.request(
            "GET", path, params=params, verb=verb, kind=kind, name=name, namespace=namespace
        )
        try:
            content: Object = response.json()
        except ValueError as e:
            raise self._no_api_server() from e
        if not isinstance(content, dict):
            raise self._no_api_server()
        return content

    def _no_api_server(self) -> Unreachable:
        return Unreachable(
            f"{self.server} of {self.display_name} answers, but not as a Kubernetes API server",
            remedy="Check the server's address in the kubeconfig: it may be that of a login page or a proxy",
        )

    def _pages(
        self,
        kind_name: str,
        labels: Mapping[str, str | None] | None,
        fields: Mapping[str, str] | None,
        namespace: str | None,
        limit: int | None,
    ) -> Iterator[Object]:
        kind = self.kind(kind_name)
        params = _selectors(labels, fields)
        left = limit
        while True:
            size = PAGE_SIZE if left is None else min(PAGE_SIZE, left)
            page = self._get(
                kind.path(namespace), kind, namespace=namespace, params=params | {"limit": str(size)}, verb="list"
            )
            yield page
            left = None if left is None else left - len(page["items"])
            rest = page["metadata"].get("continue")
            if not rest or left == 0:
                return
            params["continue"] = rest


LOG = Kind("Log", "v1", "pods/log")


def _selectors(labels: Mapping[str, str | None] | None, fields: Mapping[str, str] | None) -> dict[str, str]:
    params = {}
    if labels:
        params["labelSelector"] = ",".join(key if value is None else f"{key}={value}" for key, value in labels.items())
    if fields:
        params["fieldSelector"] = ",".join(f"{key}={value}" for key, value in fields.items())
    return params
