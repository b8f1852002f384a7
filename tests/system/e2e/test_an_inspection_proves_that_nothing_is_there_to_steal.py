"""A real sandbox, inspected through the control API: nothing is found, until something is planted in it."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from coatcheck.inspection.statement import verify
from coatcheck.telemetry.audit.checkpoint import load_public_key
from tests.cli.transcript import Said, coatcheck
from tests.daemon import TestDaemon
from tests.known_secrets import known_secret

pytestmark = pytest.mark.needs_debian("bwrap", "runc")

READ = "import sys; held = sys.stdin.buffer.read(SIZE); "
WAIT = "; print('held', flush=True); sys.stdin.buffer.read()"
KEEP = READ + "more = held" + WAIT
WRITE = READ + "open('notes', 'wb').write(b'key: ' + held)" + WAIT


@dataclass
class Sandbox:
    """One of the namespace backend, as its launcher sees it."""

    daemon: TestDaemon
    http: aiohttp.ClientSession
    id: str

    async def call(self, method: str, path: str, **body: Any) -> tuple[int, Any]:
        url = f"http://localhost/v1/sandboxes/{self.id}{path}"
        async with self.http.request(method, url, json=body if method == "POST" else None) as answer:
            return answer.status, await answer.json()

    async def inspect(self) -> dict[str, Any]:
        """The inspection, once it ended."""
        status, said = await self.call("POST", "/inspect")
        assert status == 202, said
        async with asyncio.timeout(120):
            while not said["ended"]:
                await asyncio.sleep(0.05)
                status, said = await self.call("GET", "/inspect")
        assert status == 200
        return dict(said)

    @asynccontextmanager
    async def running(self, *command: str, stdin: bytes) -> AsyncIterator[None]:
        """A command that has taken its input and waits for more."""
        async with self.http.ws_connect(f"http://localhost/v1/sandboxes/{self.id}/exec") as ws:
            await ws.send_str(json.dumps({"command": command}))
            await ws.send_bytes(stdin)
            async with asyncio.timeout(60):
                async for message in ws:
                    assert '"exit"' not in str(message.data), message.data
                    if message.type is aiohttp.WSMsgType.BINARY and b"held" in message.data:
                        break
            yield


@pytest.fixture
async def sandbox(daemon: TestDaemon) -> AsyncIterator[Sandbox]:
    """In front of the e2e tests' policy; no image: it sees the host's programs."""
    connector = aiohttp.UnixConnector(str(daemon.settings.control))
    async with aiohttp.ClientSession(connector=connector) as http:
        wanted = {
            "tenant": "acme", "subject": "agent", "policy": "default", "backend": "namespace",
            "memory_mib": 128, "disk_mib": 16,
        }  # fmt: skip
        async with http.post("http://localhost/v1/sandboxes", json=wanted) as answer:
            said = await answer.json()
            assert answer.status == 201, said
        made = Sandbox(daemon, http, said["sandbox"]["id"])
        async with asyncio.timeout(60):
            while (said := (await made.call("GET", "?wait_seconds=5"))[1])["sandbox"]["state"] == "starting":
                pass
        assert said["sandbox"]["state"] == "running", said
        try:
            yield made
        finally:
            await made.call("POST", "/kill")


def public_key(daemon: TestDaemon) -> Path:
    return daemon.directory.path / "checkpoint-key.pem.pub"


async def test_nothing_is_found_and_then_what_was_planted(sandbox: Sandbox) -> None:
    """In a process's memory and in a file, by the policy's own secrets; the sandbox runs again each time, and
    anyone with the public key can check the statement."""
    clean = await sandbox.inspect()
    assert clean["state"] == "nothing_found", clean
    said = verify(json.dumps(clean["signed"]).encode(), [load_public_key(public_key(sandbox.daemon))])
    assert said["sandbox"] == sandbox.id and said["findings"] == [] and said["not_checked"] == {}
    assert said["checked"].keys() == {"openai", "anthropic", "aws"} and said["bytes_searched"] > 1_000_000
    assert (await sandbox.call("GET", ""))[1]["sandbox"]["state"] == "running"

    planted = known_secret("e2e aws key", prefix="").encode()
    size = str(len(planted))
    async with sandbox.running("python3", "-c", KEEP.replace("SIZE", size), stdin=planted):
        found = await sandbox.inspect()
    findings = found["signed"]["statement"]["findings"]
    assert {(f["credential"], f["region"]) for f in findings} == {("aws", "processes")}

    async with sandbox.running("python3", "-c", WRITE.replace("SIZE", size), stdin=planted):
        pass
    found = await sandbox.inspect()
    findings = found["signed"]["statement"]["findings"]
    assert ("files in /home", 5) in {(f["region"], f["offset"]) for f in findings}, findings

    records = [record for record in sandbox.daemon.records() if record["type"] == "inspection"]
    assert [record["result"] for record in records] == ["nothing_found", "found", "found"]
    assert records[0]["statement"] == clean["signed"]["sha256"]


async def test_the_command_inspects_and_checks_its_statement(sandbox: Sandbox, tmp_path: Path) -> None:
    """As an operator does it, and then as an auditor who has the public key and the file."""
    control = sandbox.daemon.settings.control
    said = await command("sandbox", "inspect", sandbox.id, "--socket", control, "--json")
    assert said.code == 0, said.err
    (tmp_path / "statement.json").write_text(said.out)
    key = public_key(sandbox.daemon)
    checked = await command("sandbox", "inspect", "--verify", tmp_path / "statement.json", "--key", key)
    assert checked.code == 0 and "the signature holds" in checked.out, checked.err
    assert "nothing found" in checked.out and sandbox.id in checked.out


async def command(*arguments: str | Path) -> Said:
    return await asyncio.to_thread(coatcheck, *arguments, cwd=Path.cwd())
