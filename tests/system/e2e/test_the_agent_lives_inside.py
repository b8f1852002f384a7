"""The real Claude Code, as claude-agent-sdk brings it, lives in a sandbox, holds handles, does its work.

Both tasks in a sandbox of the namespace backend, and the SDK drives it from the host. The demo does the same
in a microVM, with an inspection that finds nothing and one that finds what was planted:
tests/exhaustive/demo/test_main.
"""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from coatcheck.client.frameworks.claude_agent_sdk import command_file
from coatcheck.client.sandbox import Sandbox, SandboxClient
from demo.agent_program import ENVIRONMENT, MODEL, Conversation, bundled, command
from demo.upstreams.report_pdf import Report, make_report
from demo.upstreams.server import TlsServer
from demo.upstreams.working_model import PRIMES_TASK, REPORT_TASK
from tests.daemon import TestDaemon
from tests.system.e2e.inside import no_secret_in

SECONDS = 300.0
"""Both tasks take some seconds of a CPU, and this machine may be shared by many."""
HOME = "/home/agent"
PRIMES = " ".join(str(n) for n in range(2, 230) if all(n % d for d in range(2, n)))


@pytest.fixture
def program() -> Path:
    found = bundled()
    assert found is not None, "claude-agent-sdk brings no program for this platform"
    return found


@pytest.fixture
async def sandboxes(daemon: TestDaemon) -> AsyncIterator[SandboxClient]:
    async with SandboxClient(daemon.settings.control) as client:
        yield client


async def made(client: SandboxClient, **different: Any) -> Sandbox:
    return await client.create(**{"tenant": "acme", "subject": "agent", "policy": "default"} | different)


async def both_tasks(sandbox: Sandbox, program: str) -> None:
    """One conversation, and an inspection in the middle of it. All that comes out of the sandbox is free of
    secrets, and right."""
    report = make_report()
    await sandbox.write_file(f"{HOME}/report.pdf", report.pdf)
    held = (await sandbox.run(["env"])).stdout
    assert b"ANTHROPIC_API_KEY=sk-ant-cch_" in held
    no_secret_in(held, "environment")
    async with asyncio.timeout(SECONDS):
        process = await sandbox.start(command(program), environment=ENVIRONMENT)
        async with process:
            talk = Conversation(process)
            assert (await talk.ask(PRIMES_TASK)).endswith(PRIMES)
            # It stands still meanwhile, and goes on.
            inspected = await sandbox.inspect()
            assert inspected["state"] == "nothing_found", inspected
            assert "summary.md" in await talk.ask(REPORT_TASK)
            assert await talk.end() == 0
    no_secret_in(bytes(talk.said), "output")
    await summarised(sandbox, report)


async def summarised(sandbox: Sandbox, report: Report) -> None:
    """The summary holds this run's findings, which only the report knows."""
    async with sandbox.read_file(f"{HOME}/summary.md") as chunks:
        summary = b"".join([chunk async for chunk in chunks]).decode()
    assert [finding for finding in report.findings if f"- {finding}" not in summary] == []


@pytest.mark.needs_debian("bwrap", "pdftotext")
async def test_in_a_namespace_sandbox_and_driven_by_the_sdk(
    sandboxes: SandboxClient, daemon: TestDaemon, origin_server: TlsServer, program: Path, tmp_path: Path
) -> None:
    """Alone at first; then `query` of the unmodified SDK talks to it over the sandbox's exec stream."""
    # Two seconds of a processor, which only the worker that runs this file should spend.
    from claude_agent_sdk import AssistantMessage, ClaudeAgentOptions, ResultMessage, ToolUseBlock, query

    async with await made(sandboxes, backend="namespace", memory_mib=2048, disk_mib=600) as sandbox:
        await sandbox.upload(program, f"{HOME}/claude")
        await both_tasks(sandbox, f"{HOME}/claude")

        await sandbox.run(["rm", "summary.md"])
        report = make_report()
        await sandbox.write_file(f"{HOME}/report.pdf", report.pdf)
        cli = command_file(
            tmp_path / "claude",
            sandbox.id,
            f"{HOME}/claude",
            socket=daemon.settings.control,
            environment=ENVIRONMENT,
        )
        options = ClaudeAgentOptions(cli_path=cli, allowed_tools=["Bash"], model=MODEL, setting_sources=[])
        async with asyncio.timeout(SECONDS):
            messages = [message async for message in query(prompt=REPORT_TASK, options=options)]
        (result,) = [message for message in messages if isinstance(message, ResultMessage)]
        assert not result.is_error and "summary.md" in str(result.result)
        blocks = [block for each in messages if isinstance(each, AssistantMessage) for block in each.content]
        assert [block.name for block in blocks if isinstance(block, ToolUseBlock)] == ["Bash"] * 3
        no_secret_in(repr(messages).encode(), "messages")
        await summarised(sandbox, report)
    assert {seen.genuine for seen in origin_server.seen} == {"anthropic"}
