"""Our own surfaces, reached as a program of a sandbox, or a page in somebody's browser, could reach them.

`reach: control` opens a connection to the control API's port, `reach: metadata` to the metadata service of
this sandbox; then `bytes` and `read` go on. `dns: [{name, type}, …]` asks the sandbox's resolver (`over:
tcp`), and writes what it answers down as `[name type: code addresses]`.
"""

import asyncio
import shutil
import struct
import tempfile
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AsyncExitStack
from ipaddress import ip_address
from pathlib import Path
from typing import Any, Final

from coatcheck.client.control import ControlClient
from coatcheck.decision.synthetic import synthetic
from coatcheck.metadata.http import Client
from coatcheck.metadata.service import MetadataService
from tests.corpus.driver import PATIENCE, STEPS, Connection, Driver
from tests.corpus.expand import KINDS
from tests.corpus.proxies import Coatcheck, Inside, token_of
from tests.system.metadata.metadata_socket import metadata_on

_SENTINEL: Final = 0xFFFF
_SERVICES: Final[dict[str, MetadataService]] = {}
"""By session."""


def _port_of_control(driver: Driver) -> tuple[str, int]:
    assert isinstance(driver.proxy, Coatcheck)
    control = driver.proxy.daemon.control
    assert control is not None
    return control.addresses[0]


async def _control(driver: Driver) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    return await asyncio.open_connection(*_port_of_control(driver))


async def _metadata(driver: Driver) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    assert isinstance(driver.proxy, Coatcheck)
    session = driver.inside.session
    directory = Path(tempfile.mkdtemp(prefix="cch-"))
    client = ControlClient(driver.proxy.daemon.settings.control)
    service = _SERVICES[session] = MetadataService(client, "sbx_0123456789abcdef")
    stack = AsyncExitStack()
    stack.callback(shutil.rmtree, directory)
    stack.callback(_SERVICES.pop, session)
    stack.push_async_callback(service.close)
    path = await stack.enter_async_context(metadata_on(service, Client("agent", session), directory / "m"))
    driver.undo.append(("metadata", stack.aclose))
    return await asyncio.open_unix_connection(path)


type Opener = Callable[[Driver], Awaitable[tuple[asyncio.StreamReader, asyncio.StreamWriter]]]
_OPENERS: Final[dict[str, Opener]] = {"control": _control, "metadata": _metadata}


async def _reach(driver: Driver, what: str, step: Mapping[str, Any]) -> None:
    reader, writer = await _OPENERS[what](driver)
    name = step.get("on", "main")
    driver.connections[name] = Connection(reader, writer, driver.inside, driver.outcome)


# --- the sandbox's resolver ---------------------------------------------------------------------------------


def _query(asked: Mapping[str, Any], number: int, expand: Callable[[str], bytes]) -> bytes:
    """One question; `bytes` is a whole message after its id, `flags` and `counts` are its header's."""
    if "bytes" in asked:
        return struct.pack("!H", number) + expand(asked["bytes"])
    labels = expand(asked["name"]).split(b".")
    name = b"".join(bytes([len(label)]) + label for label in labels) + b"\0"
    head = struct.pack("!HH4H", number, asked.get("flags", 0x0100), *asked.get("counts", (1, 0, 0, 0)))
    return head + name + struct.pack("!HH", asked.get("type", 1), 1) + expand(asked.get("more", ""))


def _told(data: bytes, questions: list[Mapping[str, Any]]) -> str:
    number, flags, _, answers, _, _ = struct.unpack("!6H", data[:12])
    asked = questions[number] if number < len(questions) else {}
    addresses = []
    if answers:
        size = int.from_bytes(data[-16 - 2 : -16]) if data[-18:-16] == b"\0\x10" else 4
        addresses.append(str(ip_address(data[-size:])))
    return f"[{asked.get('name', '-')} {asked.get('type', 1)}: {flags & 15} {' '.join(addresses)}]"


class _Heard(asyncio.DatagramProtocol):
    def __init__(self) -> None:
        self.answers: asyncio.Queue[bytes] = asyncio.Queue()

    def datagram_received(self, data: bytes, addr: Any) -> None:
        self.answers.put_nowait(data)


async def _dns(driver: Driver, questions: list[Mapping[str, Any]], step: Mapping[str, Any]) -> None:
    assert isinstance(driver.proxy, Coatcheck)
    at = driver.proxy.daemon.addresses.dns[0]
    times = int(step.get("times", 1))
    messages = [_query(each, number, driver.expand) for number, each in enumerate(questions)] * times
    async with asyncio.timeout(PATIENCE):
        if step.get("over") == "tcp":
            await _by_tcp(driver, at, messages, questions)
        else:
            await _by_udp(driver, at, messages, questions)


async def _by_udp(
    driver: Driver, at: tuple[str, int], messages: list[bytes], questions: list[Mapping[str, Any]]
) -> None:
    """What is not answered before a last good question is, is never: they are answered in their order."""
    loop = asyncio.get_running_loop()
    transport, heard = await loop.create_datagram_endpoint(_Heard, remote_addr=at)
    try:
        for message in messages:
            transport.sendto(message)
            await asyncio.sleep(0)  # the resolver reads one datagram a turn, and the kernel keeps but so many
        while True:
            transport.sendto(_query({"name": "sentinel.example"}, _SENTINEL, driver.expand))
            try:
                async with asyncio.timeout(0.2):  # lost, or above the rate: asked again
                    while (data := await heard.answers.get())[:2] != b"\xff\xff":
                        driver.outcome.seen += _told(data, questions).encode()
                return
            except TimeoutError:
                pass
    finally:
        transport.close()


async def _by_tcp(
    driver: Driver, at: tuple[str, int], messages: list[bytes], questions: list[Mapping[str, Any]]
) -> None:
    reader, writer = await asyncio.open_connection(*at)
    try:
        for message in messages:
            writer.write(len(message).to_bytes(2) + message)
            size = int.from_bytes(await reader.readexactly(2))
            driver.outcome.seen += _told(await reader.readexactly(size), questions).encode()
    except (asyncio.IncompleteReadError, ConnectionError):
        driver.outcome.cut = True
    finally:
        writer.transport.abort()


def _synthetic(_: Inside, name: str, __: Mapping[str, str]) -> str:
    found = synthetic(name)
    assert found is not None
    return f" {found.ipv4}]"


def _metadata_token(inside: Inside, _: str, __: Mapping[str, str]) -> str:
    return _SERVICES[inside.session].tokens.issue("agent", 60)


def _other_metadata_token(inside: Inside, _: str, __: Mapping[str, str]) -> str:
    """Of another identity of the same sandbox."""
    return _SERVICES[inside.session].tokens.issue("tool", 60)


KINDS["pad"] = lambda _, count, __: "x" * int(count)
KINDS["fields"] = lambda _, count, __: "".join(f"X-{number}: 1\r\n" for number in range(int(count)))
KINDS["synthetic"] = _synthetic
KINDS["control"] = lambda inside, _, __: str(inside.control_port)
KINDS["token"] = lambda _, role, __: token_of(role)
KINDS["metadata_token"] = _metadata_token
KINDS["other_metadata_token"] = _other_metadata_token
STEPS["reach"] = _reach
STEPS["dns"] = _dns
