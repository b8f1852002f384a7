"""What is kept of a guest's console: its end, and nothing that could fool a terminal."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from coatcheck.launcher.console import KEPT_BYTES, Console


@pytest.fixture
async def printed() -> AsyncIterator[Console]:
    """After a guest that first floods it and then gives up."""
    console = Console()
    end = console.open()
    end.setblocking(False)
    text = b"x" * (3 * KEPT_BYTES) + b"\r\n\x1b[31mred\r\nKernel panic - not syncing: init\r\n" + b"\r\n" * 20
    await asyncio.get_running_loop().sock_sendall(end, text)
    end.close()
    while "syncing" not in console.text():
        await asyncio.sleep(0)
    yield console
    await console.close()


async def test_only_the_end_is_kept(printed: Console) -> None:
    """A guest that prints for ever fills nothing."""
    assert len(printed.text()) <= KEPT_BYTES
    assert printed.tail().endswith("Kernel panic - not syncing: init")


async def test_a_guest_cannot_colour_the_hosts_terminal(printed: Console) -> None:
    """Its bytes stand in error messages."""
    assert "\x1b" not in printed.text()
    assert "?[31mred" in printed.tail()


async def test_the_reason_is_found(printed: Console) -> None:
    """The kernel's last word is why it ended."""
    assert printed.last("Kernel panic") == "Kernel panic - not syncing: init"
    assert printed.last("Oops") == ""


async def test_it_can_be_closed_twice_or_unopened(printed: Console) -> None:
    """stop() is called on every way out."""
    await printed.close()
    await Console().close()
