"""As much of an API server as Helm needs: discovery, and objects that are made, read, replaced and deleted.

In memory, on loopback. It checks nothing about objects: `kubernetes-validate` does.
"""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

type Json = dict[str, Any]

KINDS: dict[str, dict[str, tuple[str, bool]]] = {
    "v1": {
        "configmaps": ("ConfigMap", True),
        "secrets": ("Secret", True),
        "serviceaccounts": ("ServiceAccount", True),
        "services": ("Service", True),
        "namespaces": ("Namespace", False),
    },
    "apps/v1": {"statefulsets": ("StatefulSet", True), "deployments": ("Deployment", True)},
    "policy/v1": {"poddisruptionbudgets": ("PodDisruptionBudget", True)},
    "networking.k8s.io/v1": {"networkpolicies": ("NetworkPolicy", True)},
    "admissionregistration.k8s.io/v1": {
        "mutatingwebhookconfigurations": ("MutatingWebhookConfiguration", False),
        "validatingwebhookconfigurations": ("ValidatingWebhookConfiguration", False),
    },
    "monitoring.coreos.com/v1": {
        "servicemonitors": ("ServiceMonitor", True),
        "prometheusrules": ("PrometheusRule", True),
    },
}
"""Group and version -> resource -> kind, and whether it is in a namespace."""


@dataclass(slots=True)
class Cluster:
    port: int = 0
    objects: dict[str, Json] = field(default_factory=dict)
    """By path: /apis/apps/v1/namespaces/x/deployments/y."""
    unknown: list[str] = field(default_factory=list)
    """Requests that this stand-in has no answer to: a test that relied on it would prove nothing."""

    @property
    def kubeconfig(self) -> str:
        return f"""\
apiVersion: v1
kind: Config
current-context: test
clusters: [{{name: test, cluster: {{server: "http://127.0.0.1:{self.port}"}}}}]
users: [{{name: test, user: {{}}}}]
contexts: [{{name: test, context: {{cluster: test, user: test}}}}]
"""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # head and body are two writes: each answer would wait for an ACK
    cluster: Cluster

    def log_message(self, *said: object) -> None:
        pass

    def _say(self, status: int, body: Json) -> None:
        content = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def _body(self) -> Json:
        read: Json = json.loads(self.rfile.read(int(self.headers["Content-Length"] or 0)) or b"{}")
        return read

    def _missing(self) -> None:
        status = {
            "kind": "Status",
            "apiVersion": "v1",
            "status": "Failure",
            "reason": "NotFound",
            "code": 404,
        }
        self._say(404, status | {"message": f"{self.path} not found"})

    def do_GET(self) -> None:
        path = urlsplit(self.path).path.rstrip("/")
        if (found := discovery(path)) is not None:
            self._say(200, found)
        elif path in self.cluster.objects:
            self._say(200, self.cluster.objects[path])
        elif path.rpartition("/")[2] in _RESOURCES:
            wanted = parse_qs(urlsplit(self.path).query).get("labelSelector", [""])[0]
            items = [
                each
                for place, each in self.cluster.objects.items()
                if place.rpartition("/")[0] == path and _selected(each, wanted)
            ]
            kind = _RESOURCES[path.rpartition("/")[2]]
            version = items[0]["apiVersion"] if items else "v1"
            self._say(200, {"kind": f"{kind}List", "apiVersion": version, "metadata": {}, "items": items})
        else:
            if path.rpartition("/")[0].rpartition("/")[2] not in _RESOURCES:
                self.cluster.unknown.append(self.path)
            self._missing()

    def do_POST(self) -> None:
        made = self._body()
        place = f"{urlsplit(self.path).path}/{made['metadata']['name']}"
        self.cluster.objects[place] = made
        self._say(201, made)

    def do_PUT(self) -> None:
        self.cluster.objects[urlsplit(self.path).path] = made = self._body()
        self._say(200, made)

    def do_PATCH(self) -> None:
        place = urlsplit(self.path).path
        if place not in self.cluster.objects:
            self._missing()
            return
        _merge(self.cluster.objects[place], self._body())
        self._say(200, self.cluster.objects[place])

    def do_DELETE(self) -> None:
        gone = self.cluster.objects.pop(urlsplit(self.path).path, None)
        self._body()
        if gone is None:
            self._missing()
        else:
            self._say(200, {"kind": "Status", "apiVersion": "v1", "status": "Success"})


_RESOURCES = {name: kind for group in KINDS.values() for name, (kind, _) in group.items()}


def discovery(path: str) -> Json | None:
    """What the API server says about itself at `path`; None where it says something else."""
    if path == "/version":
        return {"major": "1", "minor": "34", "gitVersion": "v1.34.0"}
    if path == "/api":
        return {"kind": "APIVersions", "versions": ["v1"]}
    if path == "/apis":
        groups = []
        for name in KINDS:
            if "/" in name:
                version = {"groupVersion": name, "version": name.partition("/")[2]}
                groups.append(
                    {"name": name.partition("/")[0], "versions": [version], "preferredVersion": version}
                )
        return {"kind": "APIGroupList", "apiVersion": "v1", "groups": groups}
    name = path.removeprefix("/apis/").removeprefix("/api/")
    if name not in KINDS:
        return None
    verbs = ["create", "delete", "get", "list", "patch", "update", "watch"]
    resources = [
        {"name": each, "singularName": "", "kind": kind, "namespaced": namespaced, "verbs": verbs}
        for each, (kind, namespaced) in KINDS[name].items()
    ]
    return {"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": name, "resources": resources}


def _selected(found: Json, wanted: str) -> bool:
    labels = found["metadata"].get("labels") or {}
    return all(
        labels.get(pair.partition("=")[0]) == pair.partition("=")[2] for pair in wanted.split(",") if pair
    )


def _merge(old: Json, new: Json) -> None:
    """RFC 7386, as far as Helm's patches of flat maps need it."""
    for name, value in new.items():
        if value is None:
            old.pop(name, None)
        elif isinstance(value, dict) and isinstance(old.get(name), dict):
            _merge(old[name], value)
        else:
            old[name] = value


@contextmanager
def cluster() -> Iterator[Cluster]:
    made = Cluster()
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (_Handler,), {"cluster": made}))
    made.port = server.server_address[1]
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), name="cluster")
    thread.start()
    try:
        yield made
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
