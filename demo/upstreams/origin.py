"""A TLS origin that speaks as OpenAI's and Anthropic's APIs do and takes nothing but the real keys.

    async with origin(certificate, key, {"openai": "sk-…", "anthropic": "sk-ant-…"}) as server:
        … https://localhost:{server.port} …; server.seen

As a program (`python -m demo.upstreams.origin --certificate F --key F`) it reads the keys as a JSON
object from standard input, never from the command line, and writes JSON lines: `{"port": …}` once it
listens, then one line for each request that it saw. It ends when its standard input does.
"""

import argparse
import asyncio
import json
import sys
from collections.abc import Callable, Collection, Mapping
from dataclasses import asdict
from pathlib import Path

from aiohttp import web

from demo.upstreams import anthropic_wire, hostile, openai_wire
from demo.upstreams.seen import Ledger, Seen
from demo.upstreams.server import TlsServer


def origin(
    certificate: Path,
    key: Path,
    keys: Mapping[str, str],
    *,
    names: Collection[str] = (),
    host: str = "127.0.0.1",
    port: int = 0,
    event_gap: float = 0.0,
    on_seen: Callable[[Seen], None] | None = None,
) -> TlsServer:
    """The server, not yet started.

    `keys`: the real keys by provider; further ones (say `internal`) count as genuine on the hostile
    routes. `event_gap`: seconds between two events of a streamed answer.
    """
    app = web.Application(client_max_size=4 << 20)
    openai_wire.add_routes(app, event_gap)
    anthropic_wire.add_routes(app, event_gap)
    app.router.add_get("/v1/models", _models)
    hostile.add_routes(app)
    return TlsServer(app, Ledger(keys), certificate, key, names=names, host=host, port=port, on_seen=on_seen)


async def _models(request: web.Request) -> web.StreamResponse:
    # Both providers use this path; each one's SDK can be told by its own headers.
    if "anthropic-version" in request.headers:
        return await anthropic_wire.models(request)
    return await openai_wire.models(request)


async def _serve(arguments: argparse.Namespace, keys: Mapping[str, str]) -> None:
    def tell(seen: Seen) -> None:
        print(json.dumps(asdict(seen)), flush=True)

    async with origin(
        arguments.certificate,
        arguments.key,
        keys,
        names=arguments.name,
        port=arguments.port,
        event_gap=arguments.event_gap,
        on_seen=tell,
    ) as server:
        print(json.dumps({"port": server.port}), flush=True)
        await asyncio.to_thread(sys.stdin.read)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m demo.upstreams.origin", description=__doc__)
    parser.add_argument("--certificate", type=Path, required=True, help="PEM chain")
    parser.add_argument("--key", type=Path, required=True, help="PEM private key")
    parser.add_argument("--name", action="append", default=[], help="a host to serve; others get 421")
    parser.add_argument("--port", type=int, default=0, help="0: any free one")
    parser.add_argument("--event-gap", type=float, default=0.0, help="seconds between streamed events")
    arguments = parser.parse_args()
    asyncio.run(_serve(arguments, json.loads(sys.stdin.readline())))


if __name__ == "__main__":
    main()
