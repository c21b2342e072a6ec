"""A cluster as its user sees it: objects are plain dicts, calls are synchronous, a refusal is a UserError."""

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, BinaryIO, Literal

import httpx

from stoker.kube import streams
from stoker.kube.kinds import KINDS, Kind
from stoker.kube.kubectl import kubectl
from stoker.kube.refusals import NOT_FOUND, Lost, Refused, Unreachable
from stoker.kube.session import Session

Object = dict[str, Any]
MANAGER = "stoker"
PAGE = 250  # objects in one answer: 5,000 pods are read in twenty, and never held together
GONE = 410
RETRIES = 30  # seconds that a watch waits for a server that is gone
REVIEW = Kind("SelfSubjectAccessReview", "authorization.k8s.io/v1", "selfsubjectaccessreviews", namespaced=False)
WHOAMI = Kind("SelfSubjectReview", "authentication.k8s.io/v1", "selfsubjectreviews", namespaced=False)
GROUPS = Kind("APIGroup", "v1", "apis", namespaced=False)
VERSION = Kind("version", "v1", "version", namespaced=False)


class Cluster:
    """Made by `connect`. Methods that take `namespace` use the cluster's own when it is left out."""

    def __init__(self, session: Session, *, context: str | None, namespace: str) -> None:
        self._session = session
        self._kinds = dict(KINDS)
        self.context = context
        self.namespace = namespace
        version = self._get("/version", VERSION).get("gitVersion")
        if not isinstance(version, str):
            raise self._stranger()
        self.version = version

    @property
    def who(self) -> str:
        """Which cluster, in words."""
        return self._session.who

    @property
    def kubectl(self) -> str:
        """What a command for things of its namespace begins with."""
        return kubectl(self.context, self.namespace)

    @property
    def kubectl_anywhere(self) -> str:
        """The same for things of no namespace, or of another."""
        return kubectl(self.context)

    @property
    def server(self) -> str:
        return self._session.server

    def apply(self, object: Object, *, dry_run: bool = False) -> Object:
        """Server-side apply: made, or made to be as given. Unknown fields are refused."""
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
        made: Object = response.json()
        return made

    def patch(
        self, kind_name: str, name: str, patch: Object, *, namespace: str | None = None, dry_run: bool = False
    ) -> Object:
        """A merge patch: null takes a key away."""
        kind, where = self.kind(kind_name), namespace or self.namespace
        response = self._session.request(
            "PATCH",
            f"{kind.path(where)}/{name}",
            params={"dryRun": "All"} if dry_run else None,
            content=json.dumps(patch).encode(),
            headers={"Content-Type": "application/merge-patch+json"},
            verb="patch",
            kind=kind,
            name=name,
            namespace=where,
        )
        patched: Object = response.json()
        return patched

    def get(self, kind_name: str, name: str, *, namespace: str | None = None) -> Object | None:
        """None when there is none of that name, or no such kind at all."""
        kind, where = self.kind(kind_name), namespace or self.namespace
        try:
            return self._get(f"{kind.path(where)}/{name}", kind, name=name, namespace=where)
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
        """One after the other, a page at a time. A label of None is one that is there, whatever it says."""
        for page in self._pages(kind_name, labels, fields, None if everywhere else namespace or self.namespace, limit):
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
        """What is there as ADDED, then what happens to it; for so long, or for ever.

        A server that forgets where a watch stood, or restarts, is asked anew: then all is told again as ADDED.
        """
        where, end = namespace or self.namespace, None if seconds is None else time.monotonic() + seconds
        kind = self.kind(kind_name)
        version: str | None = None
        failures = 0
        while end is None or time.monotonic() < end:
            if version is None:
                for page in self._pages(kind_name, labels, fields, where, None):
                    version = page["metadata"]["resourceVersion"]
                    for item in page["items"]:
                        yield "ADDED", item
            left = 300 if end is None else max(1, round(end - time.monotonic()))
            params = _selectors(labels, fields) | {"watch": "1", "allowWatchBookmarks": "true"}
            params |= {"resourceVersion": str(version), "timeoutSeconds": str(left)}
            try:
                with self._session.stream(
                    kind.path(where), verb="watch", kind=kind, name="", namespace=where, params=params
                ) as response:
                    for line in response.iter_lines():
                        failures = 0
                        happened = json.loads(line)
                        if happened["type"] == "ERROR":
                            version = None
                            break
                        version = happened["object"]["metadata"]["resourceVersion"]
                        if happened["type"] != "BOOKMARK":
                            yield happened["type"], happened["object"]
            except Refused as e:
                if e.code != GONE:
                    raise
                version = None
            except (httpx.TransportError, Unreachable):
                failures += 1
                if failures > RETRIES:
                    raise
                time.sleep(1)  # the server restarts

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
        """Lines, as they come. `since`: of the last so many seconds; `previous`: of the container before a restart."""
        where, kind = namespace or self.namespace, KINDS["Pod"]
        params = {"follow": follow, "timestamps": timestamps, "previous": previous}
        words = {key: "true" for key, value in params.items() if value}
        words |= {"container": container} if container else {}
        words |= {"tailLines": str(tail)} if tail is not None else {}
        words |= {"sinceSeconds": str(max(1, round(since)))} if since is not None else {}
        path = f"{kind.path(where)}/{pod}/log"
        try:
            with self._session.stream(path, verb="get", kind=LOG, name=pod, namespace=where, params=words) as response:
                yield from response.iter_lines()
        except httpx.TransportError as e:
            raise Lost(f"the log of pod {pod} broke off", remedy="Run it again") from e

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
        """Run a command in a container; its exit code. What is None is not connected.

        `stdin` is read to its end, and the command sees that end. `tty` gives a terminal of (columns, lines).
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
        """False when it was not there. `foreground`: it stays until all that it owns is gone."""
        kind, where = self.kind(kind_name), namespace or self.namespace
        options: Object = {"propagationPolicy": "Foreground" if foreground else "Background"}
        if grace is not None:
            options["gracePeriodSeconds"] = grace
        try:
            self._session.request(
                "DELETE",
                f"{kind.path(where)}/{name}",
                content=json.dumps(options).encode(),
                headers={"Content-Type": "application/json"},
                verb="delete",
                kind=kind,
                name=name,
                namespace=where,
            )
        except Refused as e:
            if e.code == NOT_FOUND:
                return False
            raise
        return True

    def delete_all(self, kind_name: str, *, labels: Mapping[str, str | None], namespace: str | None = None) -> None:
        """All that have these labels, in one request: they are told at the same moment."""
        kind, where = self.kind(kind_name), namespace or self.namespace
        self._session.request(
            "DELETE",
            kind.path(where),
            params=_selectors(labels, None),
            verb="deletecollection",
            kind=kind,
            namespace=where,
        )

    def allowed(self, verb: str, kind_name: str, *, subresource: str = "", namespace: str | None = None) -> bool:
        """Whether you may, as the server says."""
        kind = self.kind(kind_name)
        asked = {"verb": verb, "group": kind.group, "resource": kind.plural, "subresource": subresource}
        if kind.namespaced:
            asked["namespace"] = namespace or self.namespace
        review = {
            "apiVersion": REVIEW.version,
            "kind": REVIEW.name,
            "spec": {"resourceAttributes": {key: value for key, value in asked.items() if value}},
        }
        response = self._session.request("POST", REVIEW.path(None), json=review, verb="create", kind=REVIEW)
        return bool(response.json()["status"]["allowed"])

    def user(self) -> str | None:
        """What the server calls you; None where it does not say."""
        asked = {"apiVersion": WHOAMI.version, "kind": WHOAMI.name}
        try:
            response = self._session.request("POST", WHOAMI.path(None), json=asked, verb="create", kind=WHOAMI)
        except Refused:
            return None  # before Kubernetes 1.28
        name = (response.json().get("status") or {}).get("userInfo", {}).get("username")
        return name if isinstance(name, str) else None

    def serves(self, kind_name: str) -> bool:
        """Whether the server knows that kind: a kind of an operator's is there once its CRD is."""
        kind = self.kind(kind_name)
        try:
            return any(one["name"] == kind.plural for one in self._get(kind.root, kind)["resources"])
        except Refused as e:
            if e.code == NOT_FOUND:
                return False
            raise

    def groups(self) -> set[str]:
        """The API groups that the server knows, beyond the first."""
        return {one["name"] for one in self._get("/apis", GROUPS)["groups"]}

    def preferred(self, group: str) -> str | None:
        """Of that API group, the one that the server prefers; None where it does not know the group."""
        some = self._get("/apis", GROUPS)["groups"]
        return next((one["preferredVersion"]["version"] for one in some if one["name"] == group), None)

    def kind(self, name: str, version: str | None = None) -> Kind:
        """Asks the server for what we do not know ourselves."""
        if version is None:
            return self._kinds[name]
        if known := next((one for one in self._kinds.values() if (one.name, one.version) == (name, version)), None):
            return known
        some = Kind(name, version, name.lower() + "s")
        for one in self._get(some.root, some)["resources"]:
            if one["kind"] == name and "/" not in one["name"]:
                found = Kind(name, version, one["name"], namespaced=one["namespaced"], shared=name in self._kinds)
                self._kinds[found.key] = found
                return found
        raise Refused(f"{self.who} knows no kind {name} of {version}", remedy="See: stoker check kube", code=NOT_FOUND)

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
            found: Object = response.json()
        except ValueError as e:
            raise self._stranger() from e
        if not isinstance(found, dict):
            raise self._stranger()
        return found

    def _stranger(self) -> Unreachable:
        return Unreachable(
            f"{self.server} of {self.who} answers, but not as a Kubernetes API server",
            remedy="Check the server's address in the kubeconfig: a login page or a proxy may stand there",
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
            size = PAGE if left is None else min(PAGE, left)
            page = self._get(
                kind.path(namespace), kind, namespace=namespace, params=params | {"limit": str(size)}, verb="list"
            )
            yield page
            left = None if left is None else left - len(page["items"])
            further = page["metadata"].get("continue")
            if not further or left == 0:
                return
            params["continue"] = further


LOG = Kind("Log", "v1", "pods/log")


def _selectors(labels: Mapping[str, str | None] | None, fields: Mapping[str, str] | None) -> dict[str, str]:
    found = {}
    if labels:
        found["labelSelector"] = ",".join(key if value is None else f"{key}={value}" for key, value in labels.items())
    if fields:
        found["fieldSelector"] = ",".join(f"{key}={value}" for key, value in fields.items())
    return found
