import asyncio
from pathlib import Path

import psutil
import pytest

from demo.isolation import Isolation, probe
from demo.sandbox import Outlet, SandboxError, open_sandbox, sandbox_environment

pytestmark = pytest.mark.needs_debian("bwrap", "runc")


@pytest.fixture(params=["isolated", "ordinary"])
def isolation(request: pytest.FixtureRequest) -> Isolation:
    return probe() if request.param == "isolated" else Isolation(None, "for the test")


@pytest.fixture
def outlet(tmp_path: Path) -> Outlet:
    (tmp_path / "trust").mkdir()
    return Outlet("ses_test", {"API_KEY": "cch_example"}, tmp_path / "s", tmp_path / "trust")


async def _upper(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    # Answers every CONNECT with a refusal that quotes it: enough to see who was reached.
    head = await reader.readuntil(b"\r\n\r\n")
    target = head.split(b" ")[1]
    body = b'{"error": {"hint": "%s"}}' % target
    writer.write(b"HTTP/1.1 403 No\r\nCoatcheck-Reason: x\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
    writer.close()


async def test_programs_inside_reach_the_sessions_socket(
    isolation: Isolation, outlet: Outlet, tmp_path: Path
) -> None:
    """Through the forwarder, whichever way the sandbox was made."""
    async with await asyncio.start_unix_server(_upper, outlet.socket):
        async with open_sandbox(isolation, outlet, tmp_path) as sandbox:
            (answer,) = await sandbox.run("attempts.py", [{"to": "a.example:443", "path": "/"}])
    assert (answer["status"], answer["stage"]) == (403, "the tunnel")
    assert "a.example:443" in answer["body"]
    assert b"a.example:443" in sandbox.said


async def test_a_program_that_fails_is_reported_with_what_it_wrote(
    isolation: Isolation, outlet: Outlet, tmp_path: Path
) -> None:
    """curl without a proxy to talk to says so on its standard error."""
    async with await asyncio.start_unix_server(_upper, outlet.socket):
        async with open_sandbox(isolation, outlet, tmp_path) as sandbox:
            with pytest.raises(SandboxError, match=r"curl\.sh failed") as failed:
                await sandbox.run("curl.sh", "hello")
    assert "403" in failed.value.hint


async def test_the_sandbox_ends_with_its_block(isolation: Isolation, outlet: Outlet, tmp_path: Path) -> None:
    """All of its processes do."""
    async with await asyncio.start_unix_server(_upper, outlet.socket):
        async with open_sandbox(isolation, outlet, tmp_path) as sandbox:
            assert sandbox.process.returncode is None
    assert sandbox.process.returncode is not None


def test_its_environment_is_handles_proxy_and_trust(outlet: Outlet) -> None:
    """Nothing is inherited."""
    variables = sandbox_environment(outlet, Path("/trust"), 8080, Path("/home/agent"))
    assert variables["API_KEY"] == "cch_example"
    assert variables["HTTPS_PROXY"] == "http://127.0.0.1:8080"
    assert variables["SSL_CERT_FILE"].startswith("/trust/")
    assert "USER" not in variables and variables["HOME"] == "/home/agent"


async def test_what_runs_inside_is_filtered(outlet: Outlet, tmp_path: Path) -> None:
    """AF_VSOCK knows no namespaces; `containers.seccomp` is tested by itself."""
    async with await asyncio.start_unix_server(_upper, outlet.socket):
        async with open_sandbox(probe(), outlet, tmp_path) as sandbox:
            await sandbox.run("attempts.py", [])  # by now it runs
            below = psutil.Process(sandbox.process.pid).children(recursive=True)
            inside = [Path(f"/proc/{each.pid}/status").read_text() for each in below]
    assert any("\nSeccomp:\t2\n" in status for status in inside), inside
