"""The client without an event loop, as deepagents' backends and scripts use it: from several threads."""

import asyncio
import threading
from pathlib import Path

import pytest

from coatcheck.client.control import ControlError
from coatcheck.client.sandbox.blocking import BlockingClient
from tests.sandboxes import WANTED, Place

pytestmark = [pytest.mark.needs_debian("bwrap", "runc"), pytest.mark.asyncio(loop_scope="module")]


async def test_everything_can_be_called_from_plain_threads(where: Place, tmp_path: Path) -> None:
    """Make, run, copy, a raw stream both ways, end."""

    def work() -> None:
        with BlockingClient(where.socket) as client, client.create(**WANTED) as sandbox:
            assert sandbox.run(["cat"], input=b"hello").stdout == b"hello"
            sandbox.write_file("/home/agent/x", b"content")
            assert sandbox.read_file("/home/agent/x") == b"content"
            assert sandbox.download("/home/agent/x", tmp_path / "x") == 7
            assert sandbox.id in {each.id for each in client.list()}
            with sandbox.start(["sed", "-u", "s/^/got /"]) as process:
                for word in (b"one\n", b"two\n"):
                    process.write(word)
                    answer = process.read()
                    assert answer is not None and answer.data == b"got " + word
                process.end_input()
                assert process.read() is None and process.wait().exit_code == 0
            several = [threading.Thread(target=sandbox.run, args=(["true"],)) for _ in range(4)]
            for each in several:
                each.start()
            for each in several:
                each.join()
            again = client.get(sandbox.id)
        with pytest.raises(RuntimeError):
            again.run(["true"])

    await asyncio.to_thread(work)


async def test_a_daemon_that_refuses_is_an_error_with_its_words(where: Place) -> None:
    """The same ControlError as everywhere."""

    def work() -> str:
        with BlockingClient(where.socket) as client, pytest.raises(ControlError) as refused:
            client.get("sbx_0000000000000000")
        return refused.value.reason

    assert await asyncio.to_thread(work) == "unknown_sandbox"
