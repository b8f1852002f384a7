"""The control API as a part of a daemon: its own loop, out of the sandboxes' reach, and who gets in."""

import asyncio
import os
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from coatcheck.client.control import ControlError
from coatcheck.control.grants import GrantsError
from coatcheck.settings.daemon import Settings
from tests.daemon import running_daemon
from tests.ports import free_port
from tests.system.control.conftest import CALLERS, Control, grants_toml
from tests.upstreams import UpstreamTls


async def test_it_answers_while_the_plane_is_stuck(control: Control) -> None:
    """The plane's loop sleeps: /healthz says so, sessions can be revoked, and neither waits for it."""
    session = await control.session(listen="none")
    assert control.daemon.loop is not None
    owner = control.owner

    released = threading.Event()
    control.daemon.loop.call_soon(released.wait, 120)

    def meanwhile() -> str:
        try:
            while owner.health()["status"] != "stalled":
                time.sleep(0.05)
            owner.revoke(session, "the plane is stuck")
            return next(str(each["status"]) for each in owner.list() if each["id"] == session)
        finally:
            released.set()

    assert await asyncio.get_running_loop().run_in_executor(None, meanwhile) == "revoked"
    async with asyncio.timeout(60):
        while (await asyncio.to_thread(owner.health))["status"] != "ok":
            await asyncio.sleep(0.05)


async def proxied(address: tuple[str, int], target: str) -> tuple[int, bytes]:
    """What a sandbox gets that asks its proxy for a tunnel to `target` and speaks HTTP in it."""
    reader, writer = await asyncio.open_connection(*address)
    writer.write(f"CONNECT {target} HTTP/1.1\r\nHost: {target}\r\n\r\n".encode())
    head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 10)
    status = int(head.split()[1])
    if status == 200:
        writer.write(f"GET /v1/sessions HTTP/1.1\r\nHost: {target}\r\n\r\n".encode())
        head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 10)
        status = int(head.split()[1])
    writer.close()
    return status, head


async def test_it_cannot_be_reached_through_the_proxy(
    short_dir: Path, all_output: Path, upstream_tls: UpstreamTls
) -> None:
    """Even where the policy allows the very address, and loopback is open to upstreams."""
    port, shared = free_port(), free_port()
    grants = short_dir / "grants.toml"
    grants.write_text(grants_toml(CALLERS))
    policy = f"""
version: 1
owner: tests
rules:
  - name: loopback
    hosts: [upstream.example, other.example]
    methods: [GET]
    ports: [{port}, {shared}]
    plain_http: true
"""
    async with running_daemon(
        all_output / short_dir.name,
        policy,
        upstream_ca=upstream_tls.ca,
        connect_to={f"upstream.example:{port}": port, f"other.example:{shared}": shared},
        control_port=port,
        control_grants=grants,
        proxy_port=shared,
    ) as daemon:
        sandbox = await daemon.sandbox()
        control = await proxied(sandbox.address, f"upstream.example:{port}")
        own = await proxied(sandbox.address, f"other.example:{shared}")
        by_address = await proxied(sandbox.address, f"127.0.0.1:{port}")
        by_path = await proxied(sandbox.address, f"unix:{daemon.settings.control}")
        reasons = [record["reason"] for record in daemon.decisions() if record["outcome"] == "deny"]
        late = [record for record in daemon.records() if "own_surface" in str(record)]
    assert control[0] == own[0] == 403
    assert b"own_surface" in control[1] and b"own_surface" in own[1]
    assert by_address[0] == 403
    assert by_path[0] >= 400
    assert late or "own_surface" in reasons


CHILD = """
import os, sys
sys.path[:0] = {path!r}
import encodings.idna
from coatcheck.client.control import ControlClient, ControlError
os.setgroups([]); os.setgid({uid}); os.setuid({uid})  # last: that user may not read our modules
try:
    client = ControlClient({socket!r}, timeout=10)
    client.open_session(tenant="acme", subject="child", policy="default", listen="none")
    client.list()
    print("opened")
except ControlError as error:
    print(error.reason)
"""


def as_user(uid: int, control_socket: Path) -> str:
    """What a process of that user gets when it opens a session."""
    code = CHILD.format(uid=uid, path=sys.path, socket=str(control_socket))
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    return done.stdout.strip() or done.stderr


needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="becoming another user needs root")


@pytest.fixture
def open_socket() -> Iterator[Path]:
    """A socket's path that every user can reach: pytest's own directories are for this user alone."""
    with tempfile.TemporaryDirectory(prefix="cc-", dir="/tmp") as directory:
        Path(directory).chmod(0o755)
        yield Path(directory) / "control.sock"


@needs_root
async def test_users_are_told_apart_by_the_kernel(
    short_dir: Path, all_output: Path, upstream_tls: UpstreamTls, open_socket: Path
) -> None:
    """A uid of control_uids has every grant, one of the grants file its own; any other is turned away."""
    grants = short_dir / "grants.toml"
    grants.write_text(
        grants_toml(
            {
                "by-uid": CALLERS["ci-launcher"] | {"uid": 54001},
                "reader": {"role": "auditor", "tenants": ["*"], "uid": 54002},
            }
        )
    )
    async with running_daemon(
        all_output / short_dir.name,
        "version: 1\nowner: tests\n",
        upstream_ca=upstream_tls.ca,
        connect_to={},
        control_socket=open_socket,
        control_grants=grants,
        control_uids=(54000,),
    ) as daemon:
        said = {
            uid: await asyncio.to_thread(as_user, uid, open_socket)
            for uid in (54000, 54001, 54002, 54003, 65534)
        }
        openers = {session.opened_by for session in daemon.state.sessions.by_id.values()}
    assert said == {
        54000: "opened",
        54001: "opened",
        54002: "forbidden",
        54003: "unauthenticated",
        65534: "unauthenticated",
    }
    assert openers == {"uid:54000", "by-uid"}
    assert not open_socket.exists()


async def test_the_socket_is_as_narrow_as_its_callers(control: Control) -> None:
    """Without callers of other users it is 0600; a reload that adds one opens it, and the kernel's word
    remains."""
    assert control.daemon.control is not None
    assert control.socket.stat().st_mode & 0o777 == 0o600
    control.grants.write_text(grants_toml(CALLERS | {"x": CALLERS["auditor"] | {"uid": 54001}}))
    assert control.daemon.control.reload() is None
    assert control.socket.stat().st_mode & 0o777 == 0o666


async def test_bad_grants_are_not_taken_over(control: Control) -> None:
    """A reload that fails keeps the old grants and says what is wrong."""
    control.grants.write_text("[[caller]]\nname = 'x'\n")
    with pytest.raises(ControlError) as refused:
        await asyncio.to_thread(control.client("operator").reload)
    assert refused.value.reason == "policy_refused"
    assert "role: Field required" in refused.value.message
    assert await asyncio.to_thread(control.client("auditor").policies)


async def test_sighup_reloads_grants(control: Control) -> None:
    """What SIGHUP calls takes a caller's grant away."""
    assert await asyncio.to_thread(control.client("auditor").policies)
    control.grants.write_text(grants_toml({name: CALLERS[name] for name in ("operator",)}))
    await control.daemon.reload_all()
    with pytest.raises(ControlError) as refused:
        await asyncio.to_thread(control.client("auditor").policies)
    assert refused.value.reason == "unauthenticated"


async def test_a_daemon_with_bad_grants_does_not_start(
    short_dir: Path, all_output: Path, upstream_tls: UpstreamTls
) -> None:
    """Better no daemon than one whose callers nobody decided on."""
    grants = short_dir / "grants.toml"
    grants.write_text("caller = 5")
    with pytest.raises(GrantsError):
        async with running_daemon(
            all_output / short_dir.name,
            "version: 1\nowner: tests\n",
            upstream_ca=upstream_tls.ca,
            connect_to={},
            control_grants=grants,
        ):
            pass


async def test_no_token_and_no_handle_is_logged(control: Control, caplog: pytest.LogCaptureFixture) -> None:
    """Not by refusals, failures, or requests that cannot be parsed."""
    caplog.set_level("DEBUG")
    opened = await control.open()
    handle = opened.json["handles"]["openai"]["value"]
    token = "cct_wrong-but-somebodys"
    await control.ask("GET", f"/v1/sessions/{handle}?x={handle}", caller="operator")
    await control.ask("GET", "/v1/sessions", headers={"Authorization": f"Bearer {token}"})
    await control.ask("GET", "/v1/sessions", headers={"X-Y": f"Bearer {token}" + "x" * 9000})
    await control.ask("POST", "/v1/sessions", caller="ci-launcher", body={handle: token})
    with socket.create_connection(control.address) as raw:
        raw.sendall(b"GET / HTTP/1.1\r\nAuthorization: Bearer \x00" + token.encode() + b"\r\n\r\n")
        raw.recv(1000)
    assert caplog.text
    assert token not in caplog.text
    assert handle not in caplog.text


async def test_stopping_ends_its_thread_and_removes_its_socket(control: Control) -> None:
    """A second stop is no error."""
    server = control.daemon.control
    assert server is not None
    await asyncio.to_thread(server.stop)
    await asyncio.to_thread(server.stop)
    assert not control.socket.exists()
    with pytest.raises(ControlError) as refused:
        await asyncio.to_thread(control.owner.policies)
    assert refused.value.reason == "unreachable"


def test_tcp_beyond_loopback_needs_tls(tmp_path: Path) -> None:
    """Settings that would send tokens in the clear are refused where they are read."""
    grants = tmp_path / "grants.toml"
    with pytest.raises(ValueError, match="in the clear"):
        Settings(control_port=1, control_grants=grants, control_host="0.0.0.0")
    with pytest.raises(ValueError, match="set both"):
        Settings(control_client_ca=grants)
    assert Settings(control_port=1, control_grants=grants).control_port == 1
    assert Settings(control_port=1).control_port == 1  # the page: `coatcheck page` logs in over the socket
