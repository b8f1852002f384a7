"""One request and its answer as mitmproxy's parsers share them, with our Call beside."""

from typing import override

from mitmproxy import http
from mitmproxy.connection import Client, Server
from mitmproxy.proxy.context import Context

from coatcheck.request.call import Call


class EgressFlow(http.HTTPFlow):
    """An HTTPFlow without what only mitmproxy's views and files need: a UUID costs more than a verdict's
    look-up. `call` is ours alone: it is never in `metadata`, which mitmproxy serialises."""

    def __init__(self, client: Client, server: Server, request: http.Request) -> None:
        self.client_conn = client
        self.server_conn = server
        self.request = request
        self.live = True
        self.call: Call | None = None
        """The verdict. None is Deny."""


class EgressContext(Context):
    """A context that is forked without making a Server first, UUID and all, only to replace it."""

    @override
    def fork(self) -> "EgressContext":
        forked = object.__new__(EgressContext)
        forked.client, forked.server, forked.options = self.client, self.server, self.options
        forked.layers = self.layers.copy()
        return forked
