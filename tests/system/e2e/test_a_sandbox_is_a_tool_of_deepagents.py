"""The harness runs outside with a handle for its model; what it has its tools do happens in a sandbox."""

from pathlib import Path

import pytest

from demo.upstreams.report_pdf import make_report
from demo.upstreams.server import TlsServer
from demo.upstreams.working_model import PRIMES_TASK, REPORT_TASK
from tests.daemon import TestDaemon
from tests.system.e2e.inside import Inside

pytestmark = pytest.mark.needs_debian("bwrap", "pdftotext")

HARNESS = """
import os, sys
from pathlib import Path
from deepagents import create_deep_agent
from langchain_anthropic import ChatAnthropic
from coatcheck.client.frameworks.deepagents import CoatcheckBackend
from coatcheck.client.sandbox.blocking import BlockingClient

model = ChatAnthropic(model_name="claude-sonnet-5", timeout=60, stop=None)
wanted = dict(tenant="acme", subject="deepagents", policy="default", backend="namespace", disk_mib=64)
with BlockingClient(Path(os.environ["CONTROL"])) as client, client.create(**wanted) as sandbox:
    backend = CoatcheckBackend(sandbox)
    agent = create_deep_agent(model=model, backend=backend)
    def ask(task):
        return agent.invoke({"messages": [{"role": "user", "content": task}]})["messages"][-1].text
    print("primes:", ask(os.environ["PRIMES"]))
    uploads = backend.upload_files([("report.pdf", Path("report.pdf").read_bytes()), ("/proc/no", b"")])
    print("uploaded:", [each.error for each in uploads])
    print("report:", ask(os.environ["REPORT"]))
    found = backend.download_files(["summary.md", "nothing.md", "/tmp"])
    print("summary:", found[0].content.decode())
    print("errors:", [each.error for each in found])
    wrote, read = backend.write("notes.txt", "one\\ntwo"), backend.read("notes.txt")
    print("derived:", wrote.error, read.file_data["content"].split())
    failed = backend.execute("echo out; echo err >&2; exit 3")
    print("execute:", failed.exit_code, failed.output.split(), failed.truncated)
    print("late:", backend.execute("sleep 60", timeout=1))
    print("held:", backend.execute("env").output)
"""


async def test_both_tasks(daemon: TestDaemon, client: Inside, origin_server: TlsServer) -> None:
    """The first 50 primes, and a Markdown summary of a long PDF report, by the real deepagents."""
    report = make_report()
    Path(client.home, "report.pdf").write_bytes(report.pdf)
    output = await client.python(
        HARNESS,
        CONTROL=str(daemon.settings.control),
        PRIMES=PRIMES_TASK,
        REPORT=REPORT_TASK,
    )
    assert "primes: The first 50 primes: 2 3 5 7 11 13" in output and " 223 227 229\n" in output
    assert all(f"- {finding}" in output for finding in report.findings), output
    assert "uploaded: [None, 'permission_denied']" in output or "uploaded: [None, 'file_not_found']" in output
    assert "errors: [None, 'file_not_found', 'is_directory']" in output
    assert "derived: None ['one', 'two']" in output
    assert "execute: 3 ['out', 'err'] False" in output
    assert "time" in output.partition("late:")[2].partition("\n")[0]
    held = output.partition("held:")[2]
    assert "cch_" in held  # handles, of the sandbox's own session
    assert {seen.genuine for seen in origin_server.seen} == {"anthropic"}
