"""Files in and out of the guest, by the identity's own rights."""

import asyncio
import hashlib
import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from coatcheck.launcher.channel import Chunk, StreamReset
from tests.launcher.guest.inhabited import AS_ROOT, SECONDS, Inhabited, inhabited, read_all

MEBIBYTE = 1024 * 1024


@pytest.fixture
async def guest(agent_program: Path) -> AsyncIterator[Inhabited]:
    async with inhabited(agent_program) as guest:
        yield guest


async def test_a_file_goes_in_and_comes_out_as_it_was(guest: Inhabited) -> None:
    """Larger than all buffers, streamed both ways."""
    piece = os.urandom(MEBIBYTE)
    done = await guest.put("/tmp/big", (piece for _ in range(32)), mode="0640")
    assert done.get("written") == str(32 * MEBIBYTE)
    digest, size = hashlib.sha256(), 0
    async with await guest.channel.open("read", [("path", "/tmp/big")]) as stream:
        while isinstance(item := await stream.read(), Chunk):
            digest.update(item.data)
            size += len(item.data)
    assert (size, digest.digest()) == (32 * MEBIBYTE, hashlib.sha256(piece * 32).digest())
    assert (await guest.sh("stat -c '%a %U' /tmp/big")).out.split()[0] == b"640"


async def test_an_empty_file_is_one(guest: Inhabited) -> None:
    """No DATA at all."""
    assert (await guest.put("/home/agent/empty", [])).get("written") == "0"
    assert await guest.get("/home/agent/empty") == b""


async def test_reasons_tell_what_is_wrong(guest: Inhabited) -> None:
    """Missing, forbidden, a directory, no absolute path, a link, a pipe."""
    await guest.sh("cd /home/agent; mkdir d; ln -s /etc/passwd link; mkfifo pipe; touch f; chmod 0 f")
    for path, reason in (
        ("/home/agent/nonesuch", "file_not_found"),
        ("/home/agent/f", "permission_denied"),
        ("/home/agent/d", "is_directory"),
        ("/home/agent/d/", "invalid_path"),
        ("relative", "invalid_path"),
        ("", "invalid_path"),
        ("/home/agent/link", "invalid_path"),
        ("/home/agent/pipe", "invalid_path"),
        ("/home/agent/f/x", "invalid_path"),
    ):
        with pytest.raises(StreamReset) as told:
            await guest.get(path)
        assert told.value.reason == reason, path
    for path, reason in (
        ("/usr/x", "permission_denied"),
        ("/home/agent/d", "is_directory"),
        ("/home/agent/none/x", "file_not_found"),
        ("x", "invalid_path"),
    ):
        with pytest.raises(StreamReset) as told:
            await guest.put(path, [b"x"])
        assert told.value.reason == reason, path


async def test_a_full_disk_is_told_and_leaves_the_old_file(guest: Inhabited) -> None:
    """Nothing half written stays."""
    await guest.put("/home/agent/kept", [b"old"])
    with pytest.raises(StreamReset) as told:
        await guest.put("/home/agent/kept", (b"x" * MEBIBYTE for _ in range(16)))
    assert told.value.reason == "no_space"
    assert (await guest.get("/home/agent/kept"), await _names(guest)) == (b"old", b"kept\n")


async def test_an_upload_that_is_given_up_leaves_no_trace(guest: Inhabited) -> None:
    """Neither a half file under its name nor one beside it."""
    await guest.put("/home/agent/kept", [b"old"])
    async with await guest.channel.open("write", [("path", "/home/agent/kept")]) as stream:
        await stream.write(b"x" * 100_000)
        await _until(guest, b".coatcheck-")
    await _until(guest, b"kept\n", exactly=True)
    assert await guest.get("/home/agent/kept") == b"old"


async def test_a_link_is_replaced_and_not_followed(guest: Inhabited) -> None:
    """What one identity puts there must not lead another's upload astray."""
    await guest.sh("echo precious > /tmp/target; ln -s /tmp/target /home/agent/link")
    await guest.put("/home/agent/link", [b"new"])
    assert (await guest.get("/home/agent/link"), await guest.get("/tmp/target")) == (b"new", b"precious\n")


async def test_the_old_files_mode_stays(guest: Inhabited) -> None:
    """A script that is edited can still be run."""
    await guest.sh("touch /home/agent/s; chmod 750 /home/agent/s")
    await guest.put("/home/agent/s", [b"#!/bin/sh\n"])
    assert (await guest.run("stat", "-c", "%a", "/home/agent/s")).out == b"750\n"


@pytest.mark.skipif(not AS_ROOT, reason="an ordinary user's namespace has one uid")
async def test_rights_are_the_identitys(guest: Inhabited) -> None:
    """The kernel judges, with the identity's uid."""
    await guest.sh("echo private > /home/agent/p; chmod 600 /home/agent/p")
    for transfer in (
        guest.get("/home/agent/p", identity="tool"),
        guest.put("/home/agent/q", [b""], identity="tool"),
    ):
        with pytest.raises(StreamReset) as told:
            await transfer
        assert told.value.reason == "permission_denied"
    await guest.put("/home/tool/t", [b"x"], identity="tool")
    assert (await guest.run("stat", "-c", "%u", "/home/tool/t")).out == b"1001\n"


async def test_the_host_writes_its_own_directory_and_nothing_else_as_root(guest: Inhabited) -> None:
    """Trust stores, binary ones too; commands read them and cannot change them."""
    content = bytes(range(256))
    await guest.put("/run/coatcheck/agent/truststore.p12", [content], identity="root")
    assert await guest.get("/run/coatcheck/agent/truststore.p12") == content
    for path in ("/home/agent/x", "/run/coatcheck/../x", "/etc/passwd", "/run/x"):
        with pytest.raises(StreamReset):
            await guest.put(path, [b"x"], identity="root")
    with pytest.raises(StreamReset, match="unknown_identity"):
        await guest.get("/run/coatcheck/agent/truststore.p12", identity="root")
    if AS_ROOT:
        denied = await guest.sh("echo x > /run/coatcheck/agent/truststore.p12")
        assert denied.get("exit") != "0"


async def test_a_slow_reader_holds_nobody_else(guest: Inhabited) -> None:
    """A download that nobody takes waits in the guest's file, not in memory."""
    await guest.put("/tmp/big", (b"x" * MEBIBYTE for _ in range(4)))
    async with await guest.channel.open("read", [("path", "/tmp/big")]) as stream:
        await asyncio.sleep(0.05)
        assert await guest.get("/etc/hostname") == Path("/etc/hostname").read_bytes()
        assert len((await read_all(stream)).out) == 4 * MEBIBYTE


async def _names(guest: Inhabited) -> bytes:
    return (await guest.run("ls", "-A", "-I", ".pki", "/home/agent")).out


async def _until(guest: Inhabited, wanted: bytes, exactly: bool = False) -> None:
    async with asyncio.timeout(SECONDS):
        while True:
            names = await _names(guest)
            if names == wanted if exactly else wanted in names:
                return
            await asyncio.sleep(0.02)
