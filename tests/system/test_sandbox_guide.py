"""docs/sandboxes.md: its commands and options exist, its defaults are the code's, its Python runs."""

import re
from pathlib import Path

import pytest

from coatcheck.sandbox.limits import MIB, Limits
from coatcheck.settings.daemon import Settings
from tests.cli.transcript import coatcheck
from tests.daemon import TestDaemon
from tests.system.e2e.conftest import aws, daemon, place

__all__ = ["aws", "daemon", "place"]

GUIDE = (Path(__file__).parent.parent.parent / "docs/sandboxes.md").read_text()
BLOCKS = "\n".join(re.findall(r"```sh\n(.*?)```", GUIDE, re.DOTALL))
COMMANDS = sorted(set(re.findall(r"(?m)^(?:exec )?coatcheck (\w+ \w+)", BLOCKS)))


@pytest.mark.parametrize("command", COMMANDS)
def test_its_commands_and_their_options_exist(command: str, tmp_path: Path) -> None:
    """Each option that stands beside a command is in that command's help."""
    said = coatcheck(*command.split(), "--help", cwd=tmp_path)
    assert said.code == 0, said.error
    for line in re.findall(rf"(?m)^(?:exec )?coatcheck {command} (.*)$", BLOCKS):
        for option in re.findall(r"--[a-z-]+", line.partition(" -- ")[0]):
            assert option in said.out, f"{command} has no {option}"


def test_its_limits_are_the_codes(tmp_path: Path) -> None:
    """Defaults and options, and the settings of the ceilings."""
    rows = dict(re.findall(r"(?m)^\| [^|]+ \| `--(\w+)` \| (\d+)", GUIDE))
    given = Limits()
    assert {name: int(value) for name, value in rows.items()} == {
        "memory": given.resources.memory_mib,
        "cpus": given.resources.cpus,
        "processes": given.resources.processes,
        "disk": given.resources.disk_mib,
        "output": given.output_bytes // MIB,
        "network": given.network_bytes_per_second // MIB,
        "timeout": given.run_seconds,
    }
    said = coatcheck("sandbox", "run", "--help", cwd=tmp_path)
    assert all(f"--{name} " in said.out for name in rows)
    assert {"max_sandboxes", "sandbox_max_memory"} <= Settings.model_fields.keys()


@pytest.mark.needs_debian("bwrap", "runc")
async def test_its_python_runs(daemon: TestDaemon, capsys: pytest.CaptureFixture[str]) -> None:
    """As it stands there, but for where the socket is and which backend a test can have quickly."""
    (block,) = re.findall(r"```python\n(.*?)```", GUIDE, re.DOTALL)
    block = block.replace(
        'Path.home() / ".local/state/coatcheck/run/control.sock"', f'Path("{daemon.settings.control}")'
    )
    block = block.replace('policy="default"', 'policy="default", backend="namespace"')
    names: dict[str, object] = {}
    body = "".join(f"    {line}\n" for line in block.splitlines())
    exec(f"async def main():\n{body}", names)
    await names["main"]()  # type: ignore[operator]
    assert capsys.readouterr().out == "0 b'42\\n'\n"
