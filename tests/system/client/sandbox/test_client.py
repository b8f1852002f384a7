"""The client against a real daemon and a real sandbox: commands, files, ports, and what each end says."""

import asyncio
import hashlib
import json
import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from aiohttp import WSServerHandshakeError

from coatcheck.client.control import ControlError
from coatcheck.client.sandbox import Process, Sandbox
from tests.sandboxes import WANTED, Place, sandbox_in

pytestmark = [pytest.mark.needs_debian("bwrap", "runc"), pytest.mark.asyncio(loop_scope="module")]

SECONDS = 30.0
SERVER = """
import http.server, sys
class Echo(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    def do_POST(self):
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        said = (self.command + " " + self.path + "\\n" + str(self.headers)).encode() + body
        self.send_response(201)
        for name, value in (("Set-Cookie", "a=b"), ("Access-Control-Allow-Origin", "*"), ("X-Own", "kept"),
                            ("Strict-Transport-Security", "max-age=1"), ("Content-Length", str(len(said)))):
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(said)
    do_GET = do_POST
    def log_message(self, *a): pass
server = http.server.ThreadingHTTPServer(("127.0.0.1", 8000), Echo)
print("up", flush=True)
server.serve_forever()
"""


async def test_output_input_and_exit_code_are_the_command_s(sandbox: Sandbox) -> None:
    """The two outputs apart, in order, whatever bytes they are."""
    done = await sandbox.run(["sh", "-c", "cat; printf 'no\\377' >&2; exit 41"], input=b"\0\x80in")
    assert (done.exit_code, done.stdout, done.stderr) == (41, b"\0\x80in", b"no\xff")
    assert (await sandbox.run(["sh", "-c", "kill -TERM $$"])).ended.signal == 15


async def test_nothing_of_the_host_is_in_its_environment(sandbox: Sandbox) -> None:
    """Handles, proxy, trust, a home: and what the caller gave."""
    os.environ["P6_OF_THE_HOST"] = "1"
    done = await sandbox.run(["env", "-0"], environment={"MINE": "two words"})
    del os.environ["P6_OF_THE_HOST"]
    held = dict(each.split("=", 1) for each in done.stdout.decode().strip("\0").split("\0"))
    assert held["MINE"] == "two words" and held["HOME"] == "/home/agent" and "P6_OF_THE_HOST" not in held
    assert held["OPENAI_API_KEY"].startswith("cch_") and "ANTHROPIC_API_KEY" not in held
    assert held["HTTPS_PROXY"] == "http://127.0.0.1:3128" and held["NODE_EXTRA_CA_CERTS"].startswith("/run/")


async def test_each_identity_has_handles_and_a_session_of_its_own(where: Place, sandbox: Sandbox) -> None:
    """Told apart by the host: the same request with the other's handle is refused."""
    script = (
        'curl -s -o /dev/null -w "%{http_code}" https://api.openai.com/v1/models -H "Authorization: Bearer '
    )
    agent = (await sandbox.run(["sh", "-c", 'printf %s "$OPENAI_API_KEY"'])).stdout.decode()
    own = await sandbox.run(["sh", "-c", f'{script}{agent}"'])
    stolen = await sandbox.run(["sh", "-c", f'{script}{agent}"'], identity="tool")
    assert (own.stdout, stolen.stdout) == (b"200", b"401")
    decisions = where.daemon.decisions()[-2:]
    sessions = sandbox.shown["sessions"]
    assert [each["session"] for each in decisions] == [sessions["agent"], sessions["tool"]]
    assert decisions[1]["reason"] == "handle_stolen"


async def test_a_client_that_knows_no_proxy_is_served(sandbox: Sandbox) -> None:
    """Names resolve to synthetic addresses, and connections come out with where they were going."""
    command = (
        'curl -s --noproxy "*" -w " %{http_code}" https://api.openai.com/v1/models -H "Authorization: Bearer '
    )
    done = await sandbox.run(["sh", "-c", f'{command}$OPENAI_API_KEY"'])
    assert done.stdout.endswith(b" 200"), done


async def test_large_input_and_output_pass_at_the_same_time(sandbox: Sandbox) -> None:
    """With one window's worth in memory, not all of it."""
    content = os.urandom(1 << 20) * 8
    done = await sandbox.run(["tee", "/dev/null"], input=content)
    assert hashlib.sha256(done.stdout).digest() == hashlib.sha256(content).digest()


async def test_a_terminal_is_one(sandbox: Sandbox) -> None:
    """Its size, a new size, and Ctrl-C as the byte that it is."""
    script = "stty size; trap 'stty size; exit 9' INT; echo ready; while :; do sleep 0.05; done"
    async with await sandbox.start(["sh", "-c", script], pty=(33, 44)) as process:
        said = b""
        while b"ready" not in said:
            said += (await anext(aiter(process))).data
        assert b"33 44" in said
        await process.resize(50, 60)
        await process.write(b"\x03")
        said = b"".join([each.data async for each in process])
        assert b"50 60" in said and (await process.wait()).exit_code == 9


async def test_a_signal_is_heard_while_input_waits(sandbox: Sandbox) -> None:
    """A command that reads nothing can still be told to end."""
    async with await sandbox.start(
        ["sh", "-c", "trap 'exit 5' TERM; echo up; while :; do sleep 0.05; done"]
    ) as it:
        assert (await it.read()) is not None
        writing = asyncio.create_task(it.write(bytes(4 << 20)))
        await asyncio.sleep(0.1)
        assert not writing.done()
        await it.signal(15)
        async with asyncio.timeout(SECONDS):
            assert (await it.wait()).exit_code == 5
        with pytest.raises(BrokenPipeError):
            await writing


async def test_a_command_ends_with_its_client(sandbox: Sandbox) -> None:
    """Nobody is left to tell, so nothing goes on."""
    async with await sandbox.start(["sleep", "1234"]):
        while (await sandbox.run(["pgrep", "-f", "^sleep 1234"])).exit_code != 0:
            pass
    async with asyncio.timeout(SECONDS):
        while (await sandbox.run(["pgrep", "-f", "^sleep 1234"])).exit_code == 0:
            await asyncio.sleep(0.05)


async def test_limits_of_a_command_say_what_they_were(sandbox: Sandbox) -> None:
    """Never just a dead process."""
    late = await sandbox.run(["sleep", "60"], timeout=0.2)
    assert (late.ended.limit, late.exit_code) == ("time", 137) and "0.2" in late.ended.message
    loud = await sandbox.run(["cat", "/dev/zero"], output_bytes=100_000)
    assert (loud.ended.limit, len(loud.stdout)) == ("output", 100_000) and "--output" in loud.ended.hint


@pytest.mark.parametrize(
    ("command", "options", "reason"),
    [
        (["no-such-program"], {}, "command_not_found"),
        (["/etc/passwd"], {}, "permission_denied"),
        (["true"], {"identity": "root"}, "unknown_identity"),
        (["true"], {"cwd": "/nowhere"}, "invalid_path"),
        (["a\0b"], {}, "bad_request"),
        ([], {}, "bad_request"),
    ],
)
async def test_a_command_that_cannot_be_run_says_why(
    sandbox: Sandbox, command: list[str], options: dict[str, Any], reason: str
) -> None:
    """In words for people, with what to do next."""
    with pytest.raises(ControlError) as refused:
        await sandbox.run(command, **options)
    assert refused.value.reason == reason and refused.value.hint


async def test_files_of_any_size_go_in_and_out(sandbox: Sandbox, tmp_path: Path) -> None:
    """Streamed, with their mode; the hash inside is that of what was sent."""
    chunk = os.urandom(1 << 20)

    async def chunks() -> AsyncIterator[bytes]:
        for _ in range(48):
            yield chunk

    assert await sandbox.write_file("/home/agent/big", chunks()) == 48 << 20
    told = (await sandbox.run(["sha256sum", "/home/agent/big"])).stdout.split()[0].decode()
    assert await sandbox.download("/home/agent/big", tmp_path / "big") == 48 << 20
    assert hashlib.sha256((tmp_path / "big").read_bytes()).hexdigest() == told
    script = tmp_path / "script"
    script.write_text("#!/bin/sh\necho ran\n")
    script.chmod(0o755)
    await sandbox.upload(script, "/home/agent/script")
    assert (await sandbox.run(["/home/agent/script"])).stdout == b"ran\n"


async def test_a_file_that_does_not_arrive_whole_is_not_there(sandbox: Sandbox) -> None:
    """What was there before is untouched."""

    async def breaks() -> AsyncIterator[bytes]:
        yield bytes(100_000)
        raise OSError("the disk it came from is gone")

    await sandbox.write_file("/home/agent/kept", b"before")
    with pytest.raises((ControlError, OSError)):
        await sandbox.write_file("/home/agent/kept", breaks())
    async with sandbox.read_file("/home/agent/kept") as chunks:
        assert b"".join([each async for each in chunks]) == b"before"


@pytest.mark.parametrize(
    ("path", "reason"),
    [
        ("/home/agent/none", "file_not_found"),
        ("/home", "is_directory"),
        ("/home/tool/secret", "permission_denied"),
    ],
)
async def test_a_file_that_cannot_be_read_says_why(
    sandbox: Sandbox, tmp_path: Path, path: str, reason: str
) -> None:
    """And nothing is left of the copy."""
    await sandbox.write_file("/home/tool/secret", b"x", mode=0o600, identity="tool")
    with pytest.raises(ControlError) as refused:
        await sandbox.download(path, tmp_path / "copy")
    assert refused.value.reason == reason and [*tmp_path.iterdir()] == []


async def test_what_listens_inside_can_be_reached(where: Place, sandbox: Sandbox) -> None:
    """As a local port, and as HTTP through the control API; our token stays outside, its cookies inside."""
    async with await sandbox.start(["python3", "-I", "-c", SERVER]) as server:
        assert (await server.read()) is not None
        async with sandbox.port(8000) as local:
            reader, writer = await asyncio.open_connection("127.0.0.1", local)
            writer.write(b"GET /raw HTTP/1.0\r\n\r\n")
            assert b"GET /raw" in await reader.read()
            writer.close()
        async with where.client() as client:
            path = sandbox.http(8000, "/a%2Fb//c?q=%20x&q=")
            session = client.http()
            given = {"Authorization": "Bearer none", "Cookie": "c=d", "X-Mine": "kept"}
            async with session.post(f"http://localhost{path}", data=b"body", headers=given) as answer:
                assert answer.status == 401  # a token that is sent is what counts
            del given["Authorization"]
            async with session.post(f"http://localhost{path}", data=b"body", headers=given) as answer:
                said = (await answer.read()).decode()
                headers = {name.lower() for name in answer.headers}
    assert answer.status == 201 and said.startswith("POST /a%2Fb//c?q=%20x&q=\n") and said.endswith("body")
    assert "X-Mine: kept" in said and "cookie" not in said.lower() and "authorization" not in said.lower()
    assert "x-own" in headers
    assert not headers & {"set-cookie", "access-control-allow-origin", "strict-transport-security"}


async def test_a_port_that_nobody_listens_on_is_refused(where: Place, sandbox: Sandbox) -> None:
    """Both ways of reaching it say so."""
    async with sandbox.port(9) as local:
        reader, writer = await asyncio.open_connection("127.0.0.1", local)
        with pytest.raises(ConnectionError):
            await reader.read()
        writer.close()
    async with where.client() as client, client.request("GET", sandbox.http(9)) as answer:
        assert (answer.status, (await answer.json())["error"]["reason"]) == (502, "port_refused")


async def test_a_paused_sandbox_stands_still(sandbox: Sandbox) -> None:
    """Nothing runs until it is resumed; then it goes on."""
    script = "i=0; while :; do i=$((i+1)); echo $i; sleep 0.02; done"
    async with await sandbox.start(["sh", "-c", script]) as process:
        assert (await process.read()) is not None
        await sandbox.pause()
        assert sandbox.shown["state"] == "paused"
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(_read_on(process), 0.5)
        await sandbox.resume()
        async with asyncio.timeout(SECONDS):
            assert (await process.read()) is not None


async def _read_on(process: Process) -> None:
    while await process.read():
        pass


async def test_a_sandbox_that_ended_says_why(where: Place) -> None:
    """To a caller that runs a command in it, and to later ones."""
    async with sandbox_in(where) as sandbox:
        async with await sandbox.start(["sleep", "60"]) as process:
            await sandbox.kill("enough")
            with pytest.raises(ControlError, match="enough"):
                await process.wait()
        with pytest.raises(ControlError) as refused:
            await sandbox.run(["true"])
        assert refused.value.reason == "sandbox_ended"
        assert (await sandbox.refresh())["ending"] == "killed"


async def test_what_is_asked_for_and_cannot_be_had_is_refused(where: Place) -> None:
    """Before anything is started; and no session stays open."""
    before = {each["id"] for each in where.control().list(status="live")}
    async with where.client() as client:
        for wanted, reason in (
            ({"memory_mib": 10**9}, "beyond_limit"),
            ({"volumes": [{"name": "v", "at": "/v", "size_mib": 40_000}]}, "beyond_limit"),
            ({"policy": "none"}, "unknown_policy"),
            ({"identities": [{"name": "agent"}, {"name": "agent"}]}, "bad_value"),
            ({"identities": [{"name": "agent", "credentials": ["nope"]}]}, "unknown_credential"),
            ({"image": "nope"}, "unknown_image"),
            ({"volumes": [{"name": "../x", "at": "/work"}]}, "malformed"),
        ):
            with pytest.raises(ControlError) as refused:
                await client.create(**{**WANTED, **wanted})
            assert refused.value.reason == reason, wanted
    assert {each["id"] for each in where.control().list(status="live")} == before


async def test_the_websocket_takes_no_page_and_no_other_protocol(where: Place, sandbox: Sandbox) -> None:
    """Browsers open WebSockets to any host: what they cannot leave out is what is refused."""
    path = f"http://localhost/v1/sandboxes/{sandbox.id}/exec"
    async with where.client() as client:
        session = client.http()
        for headers in ({"Origin": "https://evil.example"}, {"Sec-Fetch-Site": "cross-site"}):
            with pytest.raises(WSServerHandshakeError) as refused:
                await session.ws_connect(path, headers=headers)
            assert refused.value.status == 403
        async with session.get(path) as plain:
            assert plain.status == 426
        with pytest.raises(WSServerHandshakeError) as refused:
            await session.ws_connect("http://localhost/v1/sandboxes")
        assert refused.value.status == 400
        async with session.ws_connect(path) as ws:
            await ws.send_str(json.dumps({"command": ["true"], "unknown": 1}))
            assert "bad_request" in (await ws.receive()).data
