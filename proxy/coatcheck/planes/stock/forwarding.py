"""One request on its way through a stock mitmproxy: its body up, its answer down, and the way it ends.

mitmproxy calls the two stream functions outside of any protection: where one raises, it drops the chunk and
continues with the next. So any failure is final: nothing passes any more, and both connections are reset, so
that neither side takes what has passed for the whole.
"""

import logging
from collections.abc import Callable
from typing import Any

from mitmproxy import ctx, http

from coatcheck.decision.denial import Deny, Reason
from coatcheck.planes.sockets import reset
from coatcheck.request.call import Call

logger = logging.getLogger(__name__)


class Forwarding:
    """One request that was judged."""

    def __init__(self, flow: http.HTTPFlow, call: Call) -> None:
        self.call = call
        self.buffered = False
        """Its body is being collected, because a credential may be injected into it."""
        self._client = flow.client_conn.id
        self._request = flow.request
        self._original: tuple[Any, bytes] | None = None
        self._dead = False

    def remember_head(self) -> None:
        """Before secrets are put in, so that they can be taken out again."""
        self._original = (self._request.headers.fields, self._request.data.path)

    def restore_head(self) -> None:
        """Once the head has left: mitmdump prints requests, and other parts of it may keep them (I1)."""
        if self._original is not None:
            self._request.headers.fields, self._request.data.path = self._original
            self._original = None

    def upload(self, data: bytes) -> list[bytes]:
        """mitmproxy's `request.stream`: chunks, then one empty one."""
        return self._pass(lambda: self.call.upload(data) if data else self.call.upload_end())

    def download(self, data: bytes) -> list[bytes]:
        """mitmproxy's `response.stream`."""
        return self._pass(lambda: self.call.download(data) if data else self.call.download_end())

    def _pass(self, step: Callable[[], bytes | list[bytes] | Deny]) -> list[bytes]:
        if self._dead:
            return []
        try:
            passed = step()
        except Exception:
            logger.exception("a body was cut off: the check of it failed")
            passed = Deny(Reason.INTERNAL_ERROR)
        if isinstance(passed, Deny):
            self.end(passed.reason)
            return []
        # An empty chunk would be the last one: it is how HTTP/1.1 ends a body (RFC 9112 7.1).
        return [chunk for chunk in ([passed] if isinstance(passed, bytes) else passed) if chunk]

    def end(self, reason: Reason) -> None:
        """Abort, without a clean end of message on either side (I3)."""
        self._dead = True
        self.call.complete(reason)
        abort(self._client)


def abort(client: str) -> None:
    """Reset a client's connection and all that were made for it."""
    handler = ctx.master.addons.get("proxyserver").connections.get(client)
    if handler is None:
        return
    for io in tuple(handler.transports.values()):
        if io.writer is not None:
            reset(io.writer)
        elif io.handler is not None:
            io.handler.cancel("aborted")
