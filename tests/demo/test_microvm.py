"""The act with the microVM; that it is shown and held is in test_main.py."""

import asyncio
import json
import os
import subprocess
import sys
from io import StringIO
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from demo.microvm import HOST, STAND_IN, missing, show_microvm
from demo.report import Report
from demo.stage import Stage
from demo.upstreams.report_pdf import make_report
from demo.upstreams.server import TlsServer
from demo.upstreams.working_model import PRIMES_TASK, REPORT_TASK
from tests.upstreams import UpstreamTls


@pytest.mark.parametrize(("ci", "differed"), [("true", 1), ("", 0)])
@pytest.mark.parametrize(
    ("path", "says"),
    [
        ("/nowhere", "not shown  qemu-system-x86_64 is missing"),
        (os.environ.get("PATH", os.defpath), "coatcheck image build"),
    ],
)
@pytest.mark.needs_debian("qemu-system-x86_64")
async def test_what_is_missing_is_told_with_what_to_do(
    path: str, says: str, ci: str, differed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """QEMU, or the image: the demo goes on, but where CI=true that is a difference."""
    monkeypatch.setenv("PATH", path)
    monkeypatch.setenv("CI", ci)
    out = StringIO()
    report = Report(out)
    stage = cast(Stage, SimpleNamespace(cache=tmp_path))  # nothing else is to be touched
    await show_microvm(report, stage)
    assert says in " ".join(out.getvalue().split()).replace("not shown ", "not shown  ")
    assert len(report.differed) == differed


def test_nothing_is_missing_where_there_are_both(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An image is a directory with a name and all its files."""
    qemu = tmp_path / "qemu-system-x86_64"
    qemu.touch(0o755)
    image = tmp_path / "images/complete/0123456789abcdef"
    for directory in ("images", "images/names", "images/complete", str(image)):
        (tmp_path / directory).mkdir(0o700)
    for file in ("vmlinuz", "initrd", "root.ext4", "manifest.json"):
        (image / file).touch()
    (tmp_path / "images/names/default").symlink_to(image)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert missing(tmp_path) is None


@pytest.mark.needs_debian("pdftotext")
async def test_the_program_that_stands_in_does_both_tasks(
    origin_server: TlsServer, upstream_tls: UpstreamTls, real_keys: dict[str, str], tmp_path: Path
) -> None:
    """As Claude Code does, line by line; here straight at the API, whose name is all that is put right."""
    report = make_report()
    (tmp_path / "report.pdf").write_bytes(report.pdf)
    source = STAND_IN.read_text().replace(HOST, f"localhost:{origin_server.port}")
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", source),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        cwd=tmp_path,
        env={
            "ANTHROPIC_API_KEY": real_keys["anthropic"],
            "SSL_CERT_FILE": str(upstream_tls.ca),
            "PATH": os.environ.get("PATH", os.defpath),
        },
    )
    asked = [{"message": {"role": "user", "content": task}} for task in (PRIMES_TASK, REPORT_TASK)]
    output, _ = await process.communicate("".join(json.dumps(one) + "\n" for one in asked).encode())
    told: list[dict[str, Any]] = [json.loads(line) for line in output.splitlines()]
    assert [one["is_error"] for one in told] == [False, False]
    assert told[0]["result"].endswith(" 211 223 227 229")
    summary = (tmp_path / "summary.md").read_text()
    assert all(finding in summary for finding in report.findings)
