"""Runs as the host of one sandbox whose programs know of no proxy, in namespaces of its own: nothing of this
machine's network is touched. `python -m demo.gate`

It makes the sandbox's network namespace and a veth pair to it, applies the real redirect, and hands what is
redirected to the session's sockets. On standard input: one JSON line that says which, and what to run in the
sandbox. On standard output: one JSON line with what that printed, or `{"cannot": why}`.
"""

import asyncio
import contextlib
import json
import os
import socket
import struct
import subprocess
import sys
from asyncio import StreamReader, StreamWriter
from pathlib import Path
from typing import Any

from coatcheck.planes.origins.original_destination import NotRedirected, from_kernel
from coatcheck.redirect.applying import SEARCH_PATH, Tool, apply
from coatcheck.redirect.plan import AtInterface, RedirectError

INTERFACE, HOST, SANDBOX = "agent0", "10.77.0.1", "10.77.0.2"
PORT, DNS_PORT = 8443, 8053
RESOLVER = "8.8.8.8"
"""What the sandbox believes to ask."""
SECONDS = 60.0
"""For the program inside, on a busy machine."""
_PROXY_V2 = b"\r\n\r\n\0\r\nQUIT\n\x21\x11" + struct.pack("!H", 12)
"""PROXY protocol, version 2: a TCP connection over IPv4; two addresses and two ports follow."""
_PIECE = 65_536


async def main() -> None:
    """One sandbox, from its making to its end."""
    asked: dict[str, Any] = json.loads(await asyncio.to_thread(sys.stdin.readline))
    # It waits for the end of its input, which comes with ours at the latest.
    sandbox = await asyncio.create_subprocess_exec(
        "unshare", "--net", "cat", stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE
    )
    try:
        await _wait_for_namespace(sandbox)
        _connect(sandbox.pid)
        apply(AtInterface(INTERFACE, PORT, DNS_PORT), Tool(asked["tool"]))
        sockets = (Path(asked["transparent"]), Path(asked["dns"]))
        async with await _listen(*sockets):
            said = await _run(sandbox.pid, asked)
    except (OSError, subprocess.SubprocessError, RedirectError) as error:
        said = {"cannot": str(error)}
    finally:
        with contextlib.suppress(ProcessLookupError):
            sandbox.kill()
        await sandbox.wait()
    print(json.dumps(said), flush=True)


async def _wait_for_namespace(sandbox: asyncio.subprocess.Process) -> None:
    while os.readlink(f"/proc/{sandbox.pid}/ns/net") == os.readlink("/proc/self/ns/net"):
        if sandbox.returncode is not None:
            raise OSError("unshare --net: no network namespace can be made here")
        await asyncio.sleep(0.01)


def _connect(pid: int) -> None:
    """A wire from here to the sandbox, and its default route. This host forwards, as one with Docker does."""
    Path("/proc/sys/net/ipv4/ip_forward").write_text("1")
    _ip([], f"link add {INTERFACE} type veth peer name eth0 netns {pid}", "link set lo up")
    _ip([], f"addr add {HOST}/24 dev {INTERFACE}", f"link set {INTERFACE} up")
    inside = ["nsenter", f"--target={pid}", "--net"]
    _ip(inside, "link set lo up", f"addr add {SANDBOX}/24 dev eth0", "link set eth0 up")
    _ip(inside, f"route add default via {HOST}")


def _ip(prefix: list[str], *lines: str) -> None:
    environment = {"PATH": SEARCH_PATH}
    ran = subprocess.run(
        [*prefix, "ip", "-batch", "-"],
        input="\n".join(lines),
        capture_output=True,
        text=True,
        env=environment,
    )
    if ran.returncode:
        raise OSError(f"ip {lines[0]}: {ran.stderr.strip()}")


async def _listen(transparent: Path, dns: Path) -> contextlib.AsyncExitStack:
    async def redirected(reader: StreamReader, writer: StreamWriter) -> None:
        sock, peer = writer.get_extra_info("socket"), writer.get_extra_info("peername")
        with contextlib.suppress(NotRedirected, OSError):
            original = from_kernel(sock)
            addresses = socket.inet_aton(peer[0]) + socket.inet_aton(original.address)
            there, out = await asyncio.open_unix_connection(transparent)
            out.write(_PROXY_V2 + addresses + struct.pack("!HH", peer[1], original.port))
            await asyncio.gather(_copy(reader, out), _copy(there, writer))
        writer.close()

    stack = contextlib.AsyncExitStack()
    await stack.enter_async_context(await asyncio.start_server(redirected, HOST, PORT))
    loop = asyncio.get_running_loop()
    transport, _ = await loop.create_datagram_endpoint(lambda: _Questions(dns), (HOST, DNS_PORT))
    stack.callback(transport.close)
    return stack


async def _copy(source: StreamReader, target: StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while piece := await source.read(_PIECE):
            target.write(piece)
            await target.drain()
    target.close()


class _Questions(asyncio.DatagramProtocol):
    """DNS over UDP, handed on as over TCP: each with its length before it (RFC 7766 8)."""

    def __init__(self, dns: Path) -> None:
        self._dns = dns
        self._running: set[asyncio.Task[None]] = set()

    def connection_made(self, transport: asyncio.DatagramTransport) -> None:  # type: ignore[override]
        self._transport = transport

    def datagram_received(self, data: bytes, addr: tuple[str, int]) -> None:
        task = asyncio.create_task(self._answer(data, addr))
        self._running.add(task)
        task.add_done_callback(self._running.discard)

    async def _answer(self, data: bytes, addr: tuple[str, int]) -> None:
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            reader, writer = await asyncio.open_unix_connection(self._dns)
            writer.write(len(data).to_bytes(2) + data)
            answer = await reader.readexactly(int.from_bytes(await reader.readexactly(2)))
            writer.close()
            self._transport.sendto(answer, addr)


async def _run(pid: int, asked: dict[str, Any]) -> dict[str, Any]:
    """The program inside, without any capability; its resolver is one that it could never reach."""
    script = 'mount --bind "$0" /etc/resolv.conf && exec "$@"'
    resolv = Path(asked["scratch"]) / "resolv.conf"
    resolv.write_text(f"nameserver {RESOLVER}\n")
    process = await asyncio.create_subprocess_exec(
        *("nsenter", f"--target={pid}", "--net", "unshare", "--mount", "sh", "-c", script, resolv),
        *("setpriv", "--pdeathsig=KILL", "--bounding-set=-all", "--inh-caps=-all", "--no-new-privs"),
        *(sys.executable, "-I", asked["program"]),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env={"PATH": SEARCH_PATH, **asked["environment"]},
    )
    try:
        async with asyncio.timeout(SECONDS):
            output, errors = await process.communicate(json.dumps(asked["given"]).encode())
    except TimeoutError:
        process.kill()
        await process.wait()
        raise OSError(f"the program inside said nothing for {SECONDS:g} seconds") from None
    if process.returncode:
        raise OSError(errors.decode(errors="replace").strip()[-500:] or f"exit code {process.returncode}")
    return {"said": json.loads(output)}


if __name__ == "__main__":
    asyncio.run(main())
