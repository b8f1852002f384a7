"""The reference as an engineer would embed it: a Master with four addons, doing only the header swap.

Our CA type (EC P-256), our ciphers, lazy upstream connections and streaming, so that the difference to
Coatcheck is Coatcheck. `python -m tests.bench.bare_master PORT CONFDIR UPSTREAM_CA` with BENCH_HANDLES.
"""

import asyncio
import logging
import sys

from mitmproxy.addons import next_layer, proxyserver, tlsconfig
from mitmproxy.master import Master
from mitmproxy.options import Options

from coatcheck.planes.mitm.tls import CIPHERS
from tests.bench.stock_swap import addons as swap


async def serve(port: int, confdir: str, upstream_ca: str) -> None:
    master = Master(Options())
    master.addons.add(proxyserver.Proxyserver(), next_layer.NextLayer(), tlsconfig.TlsConfig(), *swap)
    master.options.update(
        mode=[f"regular@127.0.0.1:{port}"],
        confdir=confdir,
        ssl_verify_upstream_trusted_ca=upstream_ca,
        ciphers_client=CIPHERS.decode(),
        ciphers_server=CIPHERS.decode(),
        connection_strategy="lazy",
        upstream_cert=False,
        stream_large_bodies="1",
    )
    master._legacy_log_events.uninstall()  # noqa: SLF001 - mitmproxy has no other way
    logging.getLogger("mitmproxy").setLevel(logging.WARNING)
    await master.run()


if __name__ == "__main__":
    asyncio.run(serve(int(sys.argv[1]), sys.argv[2], sys.argv[3]))
