"""Clients that know of no proxy: `redirected: {to: name or address, port}`, and whole requests in this mode.

Their connections come through the sandbox's `.t` socket, as a launcher's mux brings them: a PROXY header says
where they were going (`header` says it in words of its own). A name stands for the address that the
sandbox's DNS gives for it.
"""

import asyncio
from collections.abc import Mapping
from ipaddress import ip_address
from typing import Any

from tests.corpus.driver import REQUESTS, STEPS, Connection, Driver, request_bytes
from tests.corpus.proxies import Coatcheck
from tests.planes.redirected import dialled, proxy_header


async def redirected(driver: Driver, name: str, header: bytes) -> Connection:
    """A new connection of that name, behind `header`."""
    assert isinstance(driver.proxy, Coatcheck)
    path = await driver.proxy.redirects_to(driver.inside)
    reader, writer = await asyncio.open_unix_connection(path, limit=1 << 20)
    made = driver.connections[name] = Connection(reader, writer, driver.inside, driver.outcome)
    if header:
        await made.send(header)
    return made


def _header(to: str, port: int) -> bytes:
    try:
        address = str(ip_address(to.strip("[]")))
    except ValueError:
        address = dialled(to)
    return proxy_header(address, port)


async def _redirected(driver: Driver, asked: Mapping[str, Any], step: Mapping[str, Any]) -> None:
    if driver.mode == "microvm":  # the guest's own network leads it there
        await driver.dial(step.get("on", "main"), str(asked["to"]), int(asked.get("port", 443)))
        return
    text = asked.get("header")
    header = _header(asked["to"], int(asked.get("port", 443))) if text is None else driver.expand(text)
    await redirected(driver, step.get("on", "main"), header)


async def _request(driver: Driver, asked: Mapping[str, Any], step: Mapping[str, Any]) -> None:
    """Whole: to where DNS says that the host is, or to what `dialled` says."""
    name = step.get("on", "main")
    secure = asked.get("scheme", "https") == "https"
    host = str(asked["host"])
    if (connection := driver.connections.get(name)) is None:
        port = int(asked.get("port", 443 if secure else 80))
        connection = await redirected(driver, name, _header(str(asked.get("dialled", host)), port))
        if secure:
            await connection.tls(asked.get("sni", host), ["http/1.1"])
    if not connection.ended:
        await connection.send(request_bytes(asked, str(asked.get("path", "/")), driver.expand))
        await connection.answer()


STEPS["redirected"] = _redirected
REQUESTS["transparent"] = _request
