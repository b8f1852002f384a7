"""Run in a network and mount namespace of its own: a daemon that resolves by the system's DNS, which breaks.

`python -m tests.exhaustive.faults.in_dns_namespace DIRECTORY` prints as JSON what a
client was told in each state.
"""

import asyncio
import json
import struct
import subprocess
import sys
import time
from pathlib import Path
from typing import Literal

import trustme

from coatcheck.planes.upstream.name_servers import RESOLV_CONF
from demo.upstreams.origin import origin
from tests.daemon import Sandbox, TestDaemon, running_daemon
from tests.debian import find
from tests.planes.wire import http_client
from tests.system.e2e.story import reason

HOST, FIXED = "upstream.example", "other.example"
POLICY = f"""
version: 1
owner: tests
rules:
  - {{name: all, hosts: [{HOST}, {FIXED}], methods: [GET]}}
"""

type Mood = Literal["well", "slow", "silent", "servfail"]


class NameServer(asyncio.DatagramProtocol):
    """Every name is 127.0.0.1, for no time at all."""

    def __init__(self) -> None:
        self.mood: Mood = "well"
        self._transport: asyncio.DatagramTransport | None = None

    async def start(self, address: str) -> None:
        loop = asyncio.get_running_loop()
        self._transport, _ = await loop.create_datagram_endpoint(lambda: self, local_addr=(address, 53))

    def stop(self) -> None:
        assert self._transport is not None
        self._transport.close()

    def datagram_received(self, data: bytes, addr: tuple[str, int]) -> None:
        end = data.index(b"\0", 12) + 1
        question, kind = data[12 : end + 4], struct.unpack("!H", data[end : end + 2])[0]
        answer = b"\xc0\x0c\0\x01\0\x01" + struct.pack("!IH", 0, 4) + bytes((127, 0, 0, 1))
        flags = b"\x81\x82" if self.mood == "servfail" else b"\x81\x80"
        count = int(kind == 1 and self.mood != "servfail")
        message = data[:2] + flags + struct.pack("!4H", 1, count, 0, 0) + question + answer * count
        if self.mood != "silent":
            delay = 1.0 if self.mood == "slow" else 0.0
            asyncio.get_running_loop().call_later(delay, self._send, message, addr)

    def _send(self, message: bytes, addr: tuple[str, int]) -> None:
        assert self._transport is not None
        self._transport.sendto(message, addr)


async def ask(daemon: TestDaemon, sandbox: Sandbox, host: str) -> tuple[int, str, float]:
    """Status, reason, seconds. A client of its own: no kept connection, so that the name is looked up."""
    async with http_client(daemon, sandbox) as http:
        http.timeout.read = 60
        began = time.monotonic()
        answer = await http.get(f"https://{host}/big?bytes=2")
        return answer.status_code, reason(answer), time.monotonic() - began


async def run(directory: Path) -> dict[str, object]:
    authority = trustme.CA()
    authority.cert_pem.write_to_path(directory / "ca.pem")
    leaf = authority.issue_cert(HOST, FIXED)
    leaf.cert_chain_pems[0].write_to_path(directory / "cert.pem")
    leaf.private_key_pem.write_to_path(directory / "key.pem")
    told: dict[str, object] = {}
    async with (
        origin(directory / "cert.pem", directory / "key.pem", {}, names=(HOST, FIXED), port=443) as upstream,
        running_daemon(
            directory, POLICY, upstream_ca=directory / "ca.pem", connect_to={f"{FIXED}:443": 443}
        ) as daemon,
    ):
        sandbox = await daemon.sandbox()

        async def note(state: str) -> None:
            seen = len([each for each in upstream.seen if each.host == HOST])
            asked, beside = await asyncio.gather(ask(daemon, sandbox, HOST), ask(daemon, sandbox, FIXED))
            arrived = len([each for each in upstream.seen if each.host == HOST]) - seen
            told[state] = {"told": asked[:2], "seconds": asked[2], "beside": beside[0], "arrived": arrived}

        server = NameServer()
        await note("down")
        await server.start("127.0.0.1")
        await note("up again")
        moods: tuple[Mood, ...] = ("silent", "servfail", "slow", "well")
        for server.mood in moods:
            await note(server.mood)
        server.stop()
        RESOLV_CONF.resolve().write_text("nameserver 127.0.0.2\n")
        elsewhere = NameServer()
        await elsewhere.start("127.0.0.2")
        await note("elsewhere")
        elsewhere.stop()
        told["outcomes"] = [d["outcome"] for d in daemon.decisions() if HOST in d["destination"]]
    return told


if __name__ == "__main__":
    subprocess.run([find("ip") or "ip", "link", "set", "lo", "up"], check=True)
    place = Path(sys.argv[1])
    (place / "resolv.conf").write_text("nameserver 127.0.0.1\n")
    mount = [find("mount") or "mount", "--bind", str(place / "resolv.conf"), str(RESOLV_CONF.resolve())]
    subprocess.run(mount, check=True)
    print(json.dumps(asyncio.run(run(place))))
