"""docs/transparent-mode.md: what it names exists, and its rules are the ones that are made."""

import re
import tomllib
from pathlib import Path

import pytest

from coatcheck.decision.synthetic import IPV4, IPV6
from coatcheck.redirect.routes import PREFERENCE
from coatcheck.settings.daemon import Settings
from tests.cli.transcript import coatcheck

GUIDE = (Path(__file__).parent.parent.parent / "docs/transparent-mode.md").read_text()
APPLIED = sorted(re.findall(r"(?m)^coatcheck redirect (?:print|apply) ([^#\n]*)", GUIDE))


def settings() -> dict[str, str]:
    """Of its example, as the environment has them."""
    (block,) = re.findall(r"```toml\n(.*?)```", GUIDE, re.DOTALL)
    given = tomllib.loads(block)
    assert given.keys() <= Settings.model_fields.keys()
    return {
        f"COATCHECK_{name.upper()}": str(value).replace("'", '"').replace("True", "true")
        for name, value in given.items()
    }


def test_its_settings_are_settings() -> None:
    """And go together."""
    given = settings()
    assert Settings(
        transparent_port=int(given["COATCHECK_TRANSPARENT_PORT"]), transparent_trust_addresses=True
    ).transparent_port
    assert "`control_port`" in GUIDE and "control_port" in Settings.model_fields


@pytest.mark.parametrize("arguments", APPLIED)
def test_its_commands_make_rules(arguments: str, tmp_path: Path) -> None:
    """As they stand there, shown instead of applied; where no port is given, by the example's settings."""
    said = coatcheck("redirect", "print", *arguments.split(), cwd=tmp_path, env=settings())
    assert said.code == 0, said.error
    assert "redirect to :8443" in said.out and "redirect to :8053" in said.out
    preferences = set(re.findall(r"pref (\d+)", said.out))
    assert preferences <= {str(PREFERENCE), str(PREFERENCE + 1)} and str(PREFERENCE) in GUIDE


def test_its_numbers_are_the_codes() -> None:
    """The ranges of synthetic addresses; how many commands there are."""
    assert f"{IPV4} and {IPV6}" in GUIDE
    assert len(APPLIED) == 3
