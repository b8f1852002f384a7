"""docs/operators.md: what it says to type at night works on a real daemon, and what it names exists."""

import asyncio
import re
import shutil
import signal
import ssl
import subprocess
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
from ruamel.yaml import YAML

from coatcheck.decision.denial import Reason
from coatcheck.settings.daemon import Settings
from coatcheck.telemetry.metrics.table import describe
from demo.upstreams.server import TlsServer
from tests.cli.transcript import COATCHECK
from tests.system.e2e.daemon_process import DaemonProcess, OpenedSession, daemon_process
from tests.system.e2e.story import policy, until
from tests.test_docs import anchors
from tests.upstreams import UpstreamTls

ROOT = Path(__file__).parent.parent.parent
README = (ROOT / "README.md").read_text()
BENCHMARKS = (ROOT / "docs/benchmarks.md").read_text()
GUIDE = (ROOT / "docs/operators.md").read_text()
ALERTS = YAML(typ="safe", pure=True).load(ROOT / "charts/coatcheck/files/alerts.yaml")["groups"][0]["rules"]


def blocks() -> list[tuple[str, list[str]]]:
    """(the heading above, its lines) of each marked block, in order."""
    found = []
    for block in re.finditer(r"(?m)^<!-- run:on-call -->\n```sh\n((?:.*\n)*?)```$", GUIDE):
        heading = re.findall(r"(?m)^#+ (.*)$", GUIDE[: block.start()])[-1]
        found.append((heading, block[1].splitlines()))
    return found


@dataclass
class Operator:
    """Types the guide's lines; paths lead to the test's daemon, and `systemctl` to its process."""

    daemon: DaemonProcess
    left: list[tuple[str, list[str]]] = field(default_factory=blocks)

    def where(self, line: str) -> str:
        directory = self.daemon.directory
        for guides, ours in (
            ("/var/lib/coatcheck", directory / "state"),
            ("/run/coatcheck", directory / "run"),
            ("/etc/coatcheck/policies", directory / "policies"),
            ("/srv", directory / "srv"),
        ):
            line = line.replace(guides, str(ours))
        return line.replace(" -o coatcheck -g coatcheck", "")  # the test has no such user

    async def block(self, heading: str) -> str:
        """Type the next block, which stands under `heading`. What its last line printed."""
        under, lines = self.left.pop(0)
        assert under == heading
        said = ""
        for line in lines:
            if line.startswith("systemctl "):
                await self.systemctl(line.split()[1])
            else:
                said = await asyncio.to_thread(self.type, self.where(line))
        return said

    def type(self, line: str) -> str:
        path = f"{Path(COATCHECK).parent}:/usr/sbin:/usr/bin:/sbin:/bin"
        ran = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", line],
            cwd=self.daemon.directory,
            env={**self.daemon.settings, "PATH": path},
            capture_output=True, text=True, timeout=120, check=False,
        )  # fmt: skip
        assert ran.returncode == 0, f"{line}\n{ran.stdout}{ran.stderr}"
        return ran.stdout

    async def systemctl(self, verb: str) -> None:
        if verb == "reload":
            self.daemon.send(signal.SIGHUP)
        if verb in ("stop", "restart"):
            self.daemon.send(signal.SIGTERM)
            assert (await self.daemon.ended())[0] == 0
        if verb in ("start", "restart"):
            await self.daemon.start()

    def trust(self, name: str) -> Path:
        """What sandboxes are told to trust now, kept."""
        kept = self.daemon.directory / f"{name}.pem"
        shutil.copy(self.daemon.directory / "run/trust/coatcheck-ca.pem", kept)
        return kept


@asynccontextmanager
async def operator(
    place: Path, secrets: Path, origin: TlsServer, tls: UpstreamTls, key: str
) -> AsyncIterator[Operator]:
    running = daemon_process(
        place, secrets, policy(secret="file:openai/key#value"), key=key, upstream_tls=tls,
        port=origin.port, session_lease="600", drain_seconds="0.2",
    )  # fmt: skip
    async with running as daemon:
        (place / "srv/audit").mkdir(parents=True)
        (place / "srv/backup").mkdir()
        yield Operator(daemon)


async def believed(session: OpenedSession, trust: Path) -> bool:
    """Whether a program of that session which read `trust` when it started still gets through."""
    try:
        return await replace(session, ca=trust).ask() == (200, "")
    except (ssl.SSLError, ConnectionError):
        return False


async def test_what_it_says_to_type_does_what_it_says(
    all_output: Path,
    tmp_path: Path,
    origin_server: TlsServer,
    upstream_tls: UpstreamTls,
    real_keys: dict[str, str],
) -> None:
    """Every block in order: rotations, backup and restore, break-glass."""
    place = all_output / "ops"
    place.mkdir()
    async with operator(
        place, tmp_path / "secrets", origin_server, upstream_tls, real_keys["openai"]
    ) as on_call:
        daemon = on_call.daemon
        session, first = await daemon.open_session("tcp"), on_call.trust("first")
        await on_call.block("The CA")
        await until(both_are_trusted(on_call), lambda yes: yes)
        overlapping = on_call.trust("overlapping")
        assert await believed(session, first)
        await on_call.block("The CA")
        assert not await believed(session, first) and await believed(session, overlapping)

        assert "ses_" not in await on_call.block("The keys that sign handles")
        assert await session.ask() == (0, "")
        assert "state_lost" in daemon.audit.read_text()

        await on_call.block("The key that signs the audit log's checkpoints")
        keys = [(place / f"srv/audit/key-{number}.pub").read_bytes() for number in (1, 2)]
        assert keys[0] != keys[1]

        session, trust = await daemon.open_session("tcp"), on_call.trust("before the backup")
        await on_call.block("Backup and restore")
        await on_call.block("Backup and restore")
        assert await session.ask() == (0, "")
        session = await daemon.open_session("tcp")
        assert await believed(session, trust)

        await on_call.block("Break-glass")
        assert await session.ask() == (0, "")
        assert f"{session.id}  revoked" in await on_call.block("Break-glass")
        assert on_call.left == []


def both_are_trusted(on_call: Operator) -> Callable[[], Awaitable[bool]]:
    async def look() -> bool:
        return on_call.trust("look").read_text().count("BEGIN CERTIFICATE") == 2

    return look


def test_every_alert_has_its_section_and_no_section_is_about_another() -> None:
    """Same names, in the same order; the alert's annotation leads to it."""
    names = [rule["alert"] for rule in ALERTS]
    part = GUIDE.partition("\n## Alerts\n")[2].partition("\n## ")[0]
    assert re.findall(r"(?m)^### (.*)$", part) == names
    for rule in ALERTS:
        file, _, anchor = rule["annotations"]["runbook"].partition("#")
        assert (
            file == "docs/operators.md"
            and anchor == rule["alert"].lower()
            and anchor in anchors(ROOT / "docs/operators.md")
        )


FIGURES = {
    "requests, kept connections": (r"\| Coatcheck \| (\d+) \|", 650),
    "requests, a new TLS connection each": (r"\| Coatcheck \| \d+ \| (\d+) \|", 180),
    "added to one request": (r"added_ms=([\d.]+)", 1.7),
    "live sessions": (r"scale sessions=[^`]* kib_each=([\d.]+)", 2.2),
    "a revocation, to the last byte that depended on it": (r"revocation p99_ms=([\d.]+)", 3.3),
    "a revocation of 10,000 sessions at once": (r"everything_s=([\d.]+)", 1.2),
    "restart with 10,000 sessions": (r"restart_s=([\d.]+)", 2.7),
    "a waiting connection": (r"slow clients=[^`]* kib_each=([\d.]+)", 179),
}
"""Row of the capacity table -> where docs/benchmarks.md has it, as it was printed; and the row's figure."""


@pytest.mark.parametrize("row", FIGURES)
def test_capacity_is_what_the_benchmark_printed(row: str) -> None:
    """Rounded. Anyone who measures anew writes it in both places."""
    printed, said = FIGURES[row]
    figures = BENCHMARKS.partition("<!-- figures:bench -->")[2].partition("<!-- /figures:bench -->")[0]
    [measured] = set(re.findall(printed, " ".join(figures.split())))
    [cell] = re.findall(rf"(?m)^\| {re.escape(row)} \| ([^|]*)\|", GUIDE)
    assert str(said) in cell and abs(float(measured) - said) <= 0.02 * said


def test_its_settings_files_load(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Both examples, as COATCHECK_CONFIG reads them."""
    first, second = re.findall(r"```toml\n(.*?)```", GUIDE, re.DOTALL)
    (tmp_path / "config.toml").write_text(first + second)
    monkeypatch.setenv("COATCHECK_CONFIG", str(tmp_path / "config.toml"))
    assert Settings().log_format == "json" and Settings().otel_endpoint is not None


def test_every_setting_that_it_names_exists() -> None:
    """By the beginnings that settings have."""
    named = re.findall(
        r"`((?:vault|secret|session|otel|control|webhook|drain|max|proxy|audit|shadow|shared|policy)_[a-z_]+)`",
        GUIDE,
    )
    assert len(named) > 15 and set(named) - set(Reason) <= Settings.model_fields.keys()


def test_every_metric_exists() -> None:
    """An alert on a metric that is not there never fires."""
    named = set(re.findall(r"coatcheck_[a-z]+(?:_[a-z]+)+", GUIDE))
    assert len(named) > 3 and named <= {metric.name for metric in describe()}


def test_the_readme_has_the_same_figures() -> None:
    """Its one line of them."""
    line = " ".join(README.partition("Measured on two shared cores: ")[2].partition(";")[0].split())
    assert line == (
        "649 requests/s on kept connections (a stock `mitmdump -s`: 321), 1.7 ms added at the median, "
        "revocation within 3.3 ms at p99"
    )
    rows = dict(re.findall(r"(?m)^\| (Coatcheck|stock `mitmdump -s`) \| (\d+) \|", BENCHMARKS))
    assert rows == {"Coatcheck": "649", "stock `mitmdump -s`": "321"}
    assert "added_ms=1.70" in BENCHMARKS and "revocation p99_ms=3.3 " in BENCHMARKS
