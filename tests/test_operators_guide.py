"""docs/operators-guide.md: what it names exists."""

import re
import tomllib
from pathlib import Path

import pytest

from coatcheck.settings.daemon import Settings
from coatcheck.telemetry.metrics.table import describe
from tests.cli.transcript import coatcheck

GUIDE = (Path(__file__).parent.parent / "docs/operators-guide.md").read_text()
COMMANDS = sorted(
    {
        match[1].strip()
        for match in re.finditer(r"(?m)(?:^|`)coatcheck ([a-z][^`#\n]*)", GUIDE)
        if "COMMAND" not in match[1]
    }
)


def test_its_commands_were_found() -> None:
    """The pattern still sees them."""
    assert len(COMMANDS) >= 10


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_and_option_exists(command: str, tmp_path: Path) -> None:
    """As the help knows them."""
    own = command.split(" -- ")[0]
    words = re.match(r"[a-z]+(?: [a-z]+(?= |$))?", own)
    assert words is not None
    path = words[0].split()
    if path[0] not in ("session", "policy", "ca", "audit"):
        path = path[:1]
    said = coatcheck(*path, "--help", cwd=tmp_path)
    assert said.code == 0, said.err
    for option in re.findall(r"(?<= )--?[a-z][a-z-]*", own):
        assert re.search(rf"{option}\b", said.out), f"{option} is no option of {' '.join(path)}"


def test_every_metric_exists() -> None:
    """An alert on a metric that is not there never fires."""
    named = set(re.findall(r"coatcheck_[a-z_]+", GUIDE))
    assert named and named <= {metric.name for metric in describe()}


def test_every_setting_exists(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """In the example file, and where the text names one."""
    (block,) = re.findall(r"```toml\n(.*?)```", GUIDE, re.DOTALL)
    assert tomllib.loads(block).keys() <= Settings.model_fields.keys()
    (tmp_path / "config.toml").write_text(block)
    monkeypatch.setenv("COATCHECK_CONFIG", str(tmp_path / "config.toml"))
    assert Settings().log_format == "json"
    for name in ("drain_seconds", "secret_ttl", "secret_max_stale", "control_uids", "control_grants"):
        assert f"`{name}`" in GUIDE or name in GUIDE
        assert name in Settings.model_fields


def test_every_link_leads_somewhere() -> None:
    """Within the repository."""
    docs = Path(__file__).parent.parent / "docs"
    missing = [link for link in re.findall(r"\]\(([^)#]+)\)", GUIDE) if not (docs / link).exists()]
    assert missing == []
