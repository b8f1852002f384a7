"""An aiohttp application behind TLS, which writes down what it sees: what origin and git server share."""

import ssl
from collections.abc import Callable, Collection
from pathlib import Path
from types import TracebackType
from typing import Self
from weakref import WeakKeyDictionary

from aiohttp import web
from aiohttp.typedefs import Handler, Middleware

from demo.upstreams.seen import Ledger, Seen, credential_of

LEDGER: web.AppKey[Ledger] = web.AppKey("ledger", Ledger)


class TlsServer:
    """Serves `app` over TLS with one certificate. `async with` starts and stops it; then `port` is known.

    Requests for a Host that is not one of `names` get 421, as from any careful virtual host; without
    names every Host is served. `on_seen` is called with each request's record, before it is answered.
    """

    def __init__(
        self,
        app: web.Application,
        ledger: Ledger,
        certificate: Path,
        key: Path,
        *,
        names: Collection[str] = (),
        host: str = "127.0.0.1",
        port: int = 0,
        on_seen: Callable[[Seen], None] | None = None,
    ) -> None:
        self._app = app
        self._ledger = ledger
        self._names = frozenset(names)
        self._on_seen = on_seen
        self._server_names: WeakKeyDictionary[ssl.SSLObject, str] = WeakKeyDictionary()
        self._tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._tls.load_cert_chain(certificate, key)
        self._tls.set_alpn_protocols(["http/1.1"])
        self._tls.sni_callback = self._remember_name
        self._host = host
        self.port = port
        self._runner: web.AppRunner | None = None
        app[LEDGER] = ledger
        app.middlewares.append(self._middleware())

    @property
    def seen(self) -> list[Seen]:
        return list(self._ledger.seen)

    async def __aenter__(self) -> Self:
        # A stand-in answers at once or hangs on purpose: nothing is worth waiting for when it stops.
        self._runner = web.AppRunner(self._app, access_log=None, shutdown_timeout=0.1)
        await self._runner.setup()
        site = web.TCPSite(self._runner, self._host, self.port, ssl_context=self._tls)
        await site.start()
        self.port = self._runner.addresses[0][1]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._runner is not None:
            await self._runner.cleanup()

    def _remember_name(
        self, connection: ssl.SSLObject | ssl.SSLSocket, name: str | None, _context: ssl.SSLContext
    ) -> None:
        if isinstance(connection, ssl.SSLObject):
            self._server_names[connection] = name or ""

    def _middleware(self) -> Middleware:
        @web.middleware
        async def watch(request: web.Request, handler: Handler) -> web.StreamResponse:
            tls = request.get_extra_info("ssl_object")
            sni = self._server_names.get(tls, "") if tls is not None else ""
            credential = credential_of(request.headers, request.query)
            seen = self._ledger.record(request.method, request.path, request.host, sni, credential)
            if self._on_seen is not None:
                self._on_seen(seen)
            if self._names and request.url.host not in self._names:
                raise web.HTTPMisdirectedRequest(text=f"no such host here: {request.host}\n")
            return await handler(request)

        return watch
