"""QMP against a socketpair whose other end plays QEMU: a real one is in test_microvm.py."""

import asyncio
import gc
import json
import os
import select
import socket
import tracemalloc
from collections.abc import AsyncIterator
from typing import Any

import pytest

from coatcheck.launcher.qmp import LONGEST_LINE, Qmp, QmpError


class Played:
    """QEMU's end."""

    def __init__(self) -> None:
        ours, self.end = socket.socketpair()
        self.end.setblocking(False)
        self.events: list[tuple[str, Any]] = []
        self.qmp = Qmp(ours, lambda name, data: self.events.append((name, data)))

    async def says(self, *messages: object) -> None:
        text = "".join(json.dumps(message) + "\r\n" for message in messages)
        await asyncio.get_running_loop().sock_sendall(self.end, text.encode())

    async def hears(self) -> dict[str, Any]:
        """The next command, with its id."""
        line = b""
        while not line.endswith(b"}"):
            line = (line + await asyncio.get_running_loop().sock_recv(self.end, 65536)).strip()
        heard: dict[str, Any] = json.loads(line)
        return heard

    async def answers(self, asked: dict[str, Any], **answer: Any) -> None:
        await self.says({"id": asked["id"], **answer})

    async def hears_descriptor(self) -> int:
        await asyncio.to_thread(select.select, [self.end], [], [], 20)
        _, (passed,), *_ = socket.recv_fds(self.end, 1, 1)
        return passed

    async def greets(self) -> "Played":
        negotiating = asyncio.create_task(self.qmp.negotiate())
        await self.says({"QMP": {"version": {"qemu": {}, "package": ""}, "capabilities": []}})
        assert (await self.hears())["execute"] == "qmp_capabilities"
        await self.says({"return": {}})
        await negotiating
        return self


@pytest.fixture
async def silent() -> AsyncIterator[Played]:
    """One that has not greeted."""
    played = Played()
    yield played
    await played.qmp.close()
    played.end.close()


@pytest.fixture
async def played(silent: Played) -> Played:
    return await silent.greets()


async def test_a_qemu_that_does_not_greet_is_given_up(silent: Played) -> None:
    """Whatever it does instead."""
    with pytest.raises(QmpError, match="did not greet within"):
        await silent.qmp.negotiate(0.02)
    with pytest.raises(QmpError, match="cannot run stop"):
        await silent.qmp.execute("stop")


async def test_events_between_a_command_and_its_answer_are_told_apart(played: Played) -> None:
    """QEMU sends them whenever they happen."""
    asking = asyncio.create_task(played.qmp.execute("query-status"))
    asked = await played.hears()
    await played.says({"event": "STOP", "data": {"why": 1}})
    await played.answers(asked, **{"return": {"status": "paused"}})
    await played.says({"event": "X"})
    assert await asking == {"status": "paused"}
    while len(played.events) < 2:
        await asyncio.sleep(0)
    assert played.events == [("STOP", {"why": 1}), ("X", {})]


async def test_commands_at_once_get_each_its_own_answer(played: Played) -> None:
    """The second is sent when the first is answered."""
    both = asyncio.gather(played.qmp.execute("a", {"x": 1}), played.qmp.execute("b"))
    for name, arguments, answer in (("a", {"x": 1}, 1), ("b", None, 2)):
        asked = await played.hears()
        assert (asked["execute"], asked.get("arguments")) == (name, arguments)
        await played.answers(asked, **{"return": answer})
    assert tuple(await both) == (1, 2)


async def test_a_refusal_comes_with_qemus_words(played: Played) -> None:
    """They name what is wrong."""
    asking = asyncio.create_task(played.qmp.execute("cont"))
    await played.answers(await played.hears(), error={"class": "GenericError", "desc": "no such thing"})
    with pytest.raises(QmpError, match="refused cont: no such thing"):
        await asking


async def test_a_descriptor_goes_with_its_command(played: Played) -> None:
    """Device state is written to a file that QEMU cannot open by itself."""
    reading, writing = os.pipe()
    asking = asyncio.create_task(played.qmp.execute("getfd", {"fdname": "f"}, descriptor=writing))
    passed = await played.hears_descriptor()
    asked = await played.hears()
    assert asked["arguments"] == {"fdname": "f"}
    os.write(passed, b"x")
    assert os.read(reading, 1) == b"x"
    for descriptor in (reading, writing, passed):
        os.close(descriptor)
    await played.answers(asked, **{"return": {}})
    await asking


@pytest.mark.parametrize(
    "bytes_", [b"[1]\n", b"{{{\n", b"\xff\xfe\n", b"[" * 20_000 + b"\n", b"x" * (LONGEST_LINE * 3)]
)
async def test_a_qemu_that_was_taken_over_cannot_fill_or_break_us(played: Played, bytes_: bytes) -> None:
    """Whatever it sends ends in an error, with bounded memory."""
    asking = asyncio.create_task(played.qmp.execute("query-status"))
    await played.hears()
    sending = asyncio.create_task(asyncio.get_running_loop().sock_sendall(played.end, bytes_))
    with pytest.raises(QmpError, match="cannot run query-status"):
        await asking
    sending.cancel()
    await asyncio.gather(sending, return_exceptions=True)
    with pytest.raises(QmpError, match="cannot run again"):
        await played.qmp.execute("again")


async def test_events_and_answers_that_nobody_waits_for_are_not_kept(played: Played) -> None:
    """A QEMU that was taken over could send them without end."""
    tracemalloc.start()
    try:
        for number in range(1000):
            late = {"return": "x" * 10_000, "id": str(number)}
            await played.says({"event": "SHUTDOWN", "data": {}}, late)
        asking = asyncio.create_task(played.qmp.execute("query-status"))
        await played.answers(await played.hears(), **{"return": 7})
        assert await asking == 7 and len(played.events) == 1000
        gc.collect()
        assert tracemalloc.get_traced_memory()[0] < 2 << 20  # of 10 MB
    finally:
        tracemalloc.stop()


async def test_a_late_answer_is_not_taken_for_the_next_ones(played: Played) -> None:
    """Of a command that was given up, or whose asker was cancelled."""
    with pytest.raises(QmpError, match="did not answer stop"):
        await played.qmp.execute("stop", seconds=0.05)
    late = await played.hears()
    cancelled = asyncio.create_task(played.qmp.execute("cont"))
    later = await played.hears()
    cancelled.cancel()
    with pytest.raises(asyncio.CancelledError):
        await cancelled
    asking = asyncio.create_task(played.qmp.execute("query-status"))
    asked = await played.hears()
    for each, answer in ((late, 1), (later, 2), (asked, 3)):
        await played.answers(each, **{"return": answer})
    assert await asking == 3


async def test_a_qemu_that_goes_ends_every_wait(played: Played) -> None:
    """Nobody hangs on a dead machine."""
    asking = asyncio.create_task(played.qmp.execute("stop"))
    await played.hears()
    played.end.close()
    with pytest.raises(QmpError, match="QEMU has ended"):
        await asking
    await played.qmp.gone()


async def test_a_descriptor_whose_owner_closed_it_meanwhile_is_not_sent(played: Played) -> None:
    """Nor whatever has its number by then: a command that waits for its turn ends with its asker."""
    first = asyncio.create_task(played.qmp.execute("stop"))
    asked = await played.hears()
    ours = os.memfd_create("ours")
    second = asyncio.create_task(played.qmp.execute("add-fd", descriptor=ours))
    await asyncio.sleep(0)
    second.cancel()
    with pytest.raises(asyncio.CancelledError):
        await second
    os.close(ours)
    await played.answers(asked, **{"return": {}})
    await first
    third = asyncio.create_task(played.qmp.execute("query-status"))
    asked = await played.hears()
    assert asked["execute"] == "query-status"
    await played.answers(asked, **{"return": {}})
    await third
