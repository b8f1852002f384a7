"""Random frames at the real agent, built with sanitizers: it goes on, or it ends cleanly; it never crashes.

Its peer is the supervisor, which is trusted; but it parses what a supervisor passes on from callers, and a
sandbox whose first process can be crashed is one that can be ended by anyone who sends it a file name.
"""

import asyncio
import contextlib
import socket
import struct
import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coatcheck.images.guest_programs import AGENT_SOURCES
from coatcheck.launcher.frames import MAX_PAYLOAD, RESYNC, WINDOW, Kind, encode, encode_fields
from coatcheck.launcher.mux import Mux, Side
from tests.fuzz.budget import budget
from tests.launcher.guest.inhabited import IDENTITIES, SECONDS, started

HELLO = Mux(Side.HOST).hello([("generation", "1"), ("hostname", "fuzz"), ("identities", IDENTITIES)])
FREEZE = encode_fields([("kind", "control"), ("op", "freeze")])
SANITIZERS = (
    "-std=c11",
    "-D_GNU_SOURCE",
    "-O1",
    "-g",
    "-fsanitize=address,undefined",
    "-fno-sanitize-recover=all",
)
CRASHED = (b"AddressSanitizer", b"runtime error", b"stack smashing", b"Sanitizer")

_words = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=12)
_names = st.sampled_from(
    [*("kind", "arg", "env", "cwd", "identity", "pty", "memory", "processes", "stdin", "path", "mode"),
     *("port", "op", "signal", "resize", "hostname", "generation", "entropy", "reason", "volume")]
)  # fmt: skip
_values = st.one_of(
    _words,
    st.sampled_from(["exec", "read", "write", "true", "cat", "/bin/sh", "/tmp/x", "/tmp/", "/", "24,80"]),
    st.sampled_from(["configure", "freeze", "thaw", "rebind", "sync", "agent", "tool", "root", "none"]),
    st.integers(-1, 70000).map(str),
    st.just("ab" * 32),
)  # fmt: skip
_fields = st.lists(st.tuples(_names, _values), max_size=6)
_openings = st.builds(
    lambda kind, fields: encode_fields([("kind", kind), *fields]),
    st.sampled_from(["exec", "read", "write", "connect", "control", "nonsense"]),
    st.one_of(
        _fields,
        st.sampled_from(
            [
                [("arg", "cat")],
                [("arg", "cat"), ("pty", "2,3")],
                [("arg", "yes")],
                [("path", "/etc/passwd")],
                [("path", "/tmp/x")],
                [("op", "configure")],
                [("op", "freeze")],
                [("port", "9")],
            ]
        ),
    ),
)
_payloads = st.one_of(
    _openings,
    _fields.map(encode_fields),
    st.binary(max_size=40),
    st.integers(0, WINDOW).map(lambda credit: struct.pack(">I", credit)),
    st.integers(1, MAX_PAYLOAD).map(bytes),
)
_streams = st.one_of(st.integers(0, 13), st.integers(0, 2**32 - 1))
_flags = st.sampled_from([0, 0, 0, 0, 0, 1, 2, 255])
_any = st.builds(lambda kind, stream, payload, flags: encode(kind, stream, payload, flags),
                 st.sampled_from(Kind), _streams, _payloads, _flags)  # fmt: skip


@st.composite
def _plausible(draw: st.DrawFn) -> list[bytes]:
    """Streams that are opened in order and then used: deeper than chance gets."""
    said: list[bytes] = []
    opened = 0
    for _ in range(draw(st.integers(1, 25))):
        if draw(st.integers(0, 15)) == 0:  # it is saved, and another host begins anew
            said.append(encode(Kind.OPEN, 2 * opened + 1, FREEZE))
            said.append(encode(Kind.HELLO, 0, encode_fields([("protocol", "2")]), RESYNC))
            opened = 0
        elif not opened or draw(st.integers(0, 2)) == 0:
            said.append(encode(Kind.OPEN, 2 * opened + 1, draw(_openings)))
            opened += 1
        else:
            stream = 2 * draw(st.integers(0, opened - 1)) + 1
            kind = draw(st.sampled_from([Kind.DATA, Kind.DATA, Kind.END, Kind.RESET, Kind.NOTE, Kind.WINDOW]))
            payload = {
                Kind.DATA: st.integers(1, 2000).map(bytes),
                Kind.NOTE: _fields.map(encode_fields),
                Kind.RESET: _fields.map(encode_fields),
                Kind.WINDOW: st.just(b"\0\0\0\0"),
                Kind.END: st.just(b""),
            }[kind]
            said.append(encode(kind, stream, draw(payload)))
    return said


@pytest.fixture(scope="module")
def sanitized(pytestconfig: pytest.Config) -> Path:
    """The agent with sanitizers, where this compiler has them. Kept until the source is newer."""
    sources = [file for place in AGENT_SOURCES for file in sorted(place.glob("*.[ch]"))]
    headers = [f"-I{place}" for place in AGENT_SOURCES]
    made = Path(pytestconfig.cache.mkdir("guest-sanitized")) / "agent"
    if not made.exists() or made.stat().st_mtime < max(source.stat().st_mtime for source in sources):
        words = [str(source) for source in sources if source.suffix == ".c"]
        built = subprocess.run(
            ["cc", *SANITIZERS, *headers, *words, "-o", made], capture_output=True, text=True, check=False
        )
        if built.returncode:
            pytest.skip(f"this compiler has no sanitizers: {built.stderr[-200:]}")
    return made


@budget(40)
@given(st.one_of(_plausible(), st.lists(_any, max_size=20), st.lists(st.binary(max_size=60), max_size=3)))
def test_no_frames_crash_the_agent(sanitized: Path, said: list[bytes]) -> None:
    """Whatever they say."""
    asyncio.run(_say(sanitized, said))


async def _say(agent: Path, said: list[bytes]) -> None:
    async with started(agent) as (ours, process):
        loop = asyncio.get_running_loop()
        draining = asyncio.create_task(_drain(ours))
        with contextlib.suppress(OSError):  # it has ended, and must say why
            async with asyncio.timeout(SECONDS):
                await loop.sock_sendall(ours, HELLO + b"".join(said))
                await asyncio.wait([draining], timeout=0.05)  # what it started gets some time to run
        with contextlib.suppress(OSError):
            ours.shutdown(socket.SHUT_WR)
        async with asyncio.timeout(SECONDS):
            code = await process.wait()
            await draining
        assert process.stdout is not None
        words = await process.stdout.read()
        assert not any(crash in words for crash in CRASHED), words.decode(errors="replace")
        assert code == 1 and words.startswith(b"coatcheck agent: "), (code, words)


async def _drain(ours: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while await asyncio.get_running_loop().sock_recv(ours, 65536):
            pass
