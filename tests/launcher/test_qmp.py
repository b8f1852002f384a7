"""QMP against a socketpair whose other end plays QEMU: a real one is in test_microvm.py."""

import asyncio
import json
import os
import select
import socket
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

    async def hears(self) -> Any:
        return json.loads(await asyncio.get_running_loop().sock_recv(self.end, 65536))

    async def hears_with_descriptor(self) -> tuple[bytes, int]:
        await asyncio.to_thread(select.select, [self.end], [], [], 20)
        line, (passed,), *_ = socket.recv_fds(self.end, 4096, 1)
        return line, passed


@pytest.fixture
async def played() -> AsyncIterator[Played]:
    played = Played()
    yield played
    await played.qmp.close()
    played.end.close()


async def test_it_greets_and_leaves_capabilities_mode(played: Played) -> None:
    """QEMU answers nothing else before."""
    negotiating = asyncio.create_task(played.qmp.negotiate())
    await played.says({"QMP": {"version": {}}})
    assert await played.hears() == {"execute": "qmp_capabilities"}
    await played.says({"return": {}})
    await negotiating


async def test_events_between_a_command_and_its_answer_are_told_apart(played: Played) -> None:
    """QEMU sends them whenever they happen."""
    asking = asyncio.create_task(played.qmp.execute("query-status"))
    await played.hears()
    await played.says({"event": "STOP", "data": {"why": 1}}, {"return": {"status": "paused"}}, {"event": "X"})
    assert await asking == {"status": "paused"}
    while len(played.events) < 2:
        await asyncio.sleep(0)
    assert played.events == [("STOP", {"why": 1}), ("X", {})]


async def test_commands_at_once_get_each_its_own_answer(played: Played) -> None:
    """The second is sent when the first is answered."""
    both = asyncio.gather(played.qmp.execute("a", {"x": 1}), played.qmp.execute("b"))
    assert await played.hears() == {"execute": "a", "arguments": {"x": 1}}
    await played.says({"return": 1})
    assert await played.hears() == {"execute": "b"}
    await played.says({"return": 2})
    assert tuple(await both) == (1, 2)


async def test_a_refusal_comes_with_qemus_words(played: Played) -> None:
    """They name what is wrong."""
    asking = asyncio.create_task(played.qmp.execute("cont"))
    await played.hears()
    await played.says({"error": {"class": "GenericError", "desc": "no such thing"}})
    with pytest.raises(QmpError, match="no such thing"):
        await asking


async def test_a_descriptor_goes_with_its_command(played: Played) -> None:
    """Device state is written to a file that QEMU cannot open by itself."""
    reading, writing = os.pipe()
    asking = asyncio.create_task(played.qmp.execute("getfd", {"fdname": "f"}, descriptor=writing))
    line, passed = await played.hears_with_descriptor()
    assert json.loads(line)["arguments"] == {"fdname": "f"}
    os.write(passed, b"x")
    assert os.read(reading, 1) == b"x"
    for descriptor in (reading, writing, passed):
        os.close(descriptor)
    await played.says({"return": {}})
    await asking


@pytest.mark.parametrize(
    ("bytes_", "words"),
    [
        (b"[1]\n", "not a JSON object"),
        (b"{{{\n", "not a JSON object"),
        (b"\xff\xfe\n", "not a JSON object"),
        (b"x" * (LONGEST_LINE + 70_000), "a line of more than"),
    ],
)
async def test_a_qemu_that_was_taken_over_cannot_fill_or_break_us(
    played: Played, bytes_: bytes, words: str
) -> None:
    """Whatever it sends ends in an error, with bounded memory."""
    asking = asyncio.create_task(played.qmp.execute("query-status"))
    await played.hears()
    sending = asyncio.create_task(asyncio.get_running_loop().sock_sendall(played.end, bytes_))
    with pytest.raises(QmpError, match=words):
        await asking
    sending.cancel()
    with pytest.raises(QmpError, match="has ended"):
        await played.qmp.execute("again")


async def test_a_silent_qemu_is_given_up_and_never_believed_again(played: Played) -> None:
    """A late answer would be taken for that of the next command."""
    with pytest.raises(QmpError, match="did not answer stop"):
        await played.qmp.execute("stop", seconds=0.02)
    await asyncio.sleep(0)
    with pytest.raises(QmpError, match="has ended"):
        await played.qmp.execute("cont")


async def test_a_qemu_that_goes_ends_every_wait(played: Played) -> None:
    """Nobody hangs on a dead machine."""
    asking = asyncio.create_task(played.qmp.execute("stop"))
    await played.hears()
    played.end.close()
    with pytest.raises(QmpError, match="closed its control socket"):
        await asking
    with pytest.raises(QmpError, match="closed its control socket"):
        await played.qmp.negotiate()


async def test_a_command_whose_asker_was_cancelled_keeps_its_answer(played: Played) -> None:
    """Else the next one would be told what was not said to it."""
    first = asyncio.create_task(played.qmp.execute("stop"))
    assert await played.hears() == {"execute": "stop"}
    first.cancel()
    with pytest.raises(asyncio.CancelledError):
        await first
    second = asyncio.create_task(played.qmp.execute("query-status"))
    await played.says({"return": {}})
    assert await played.hears() == {"execute": "query-status"}
    await played.says({"return": {"status": "paused"}})
    assert await second == {"status": "paused"}


async def test_a_descriptor_is_sent_even_if_its_owner_closed_it_meanwhile(played: Played) -> None:
    """And not whatever has its number by then."""
    first = asyncio.create_task(played.qmp.execute("stop"))
    await played.hears()
    ours = os.memfd_create("ours")
    second = asyncio.create_task(played.qmp.execute("add-fd", descriptor=ours))
    await asyncio.sleep(0)
    inode = os.fstat(ours).st_ino
    second.cancel()
    with pytest.raises(asyncio.CancelledError):
        await second
    os.close(ours)
    other = os.memfd_create("other")
    try:
        assert other == ours
        await played.says({"return": {}})
        await first
        _, received = await played.hears_with_descriptor()
        assert os.fstat(received).st_ino == inode
        os.close(received)
        await played.says({"return": {}})
    finally:
        os.close(other)
