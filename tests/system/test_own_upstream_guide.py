"""docs/own-upstream.md, typed as it stands."""

import contextlib
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

from tests import debian
from tests.ports import free_port

GUIDE = (Path(__file__).parents[2] / "docs/own-upstream.md").read_text()
BLOCKS = re.findall(r"<!-- run:[a-z]+ -->\n```sh\n(.*?)^```$", GUIDE, re.MULTILINE | re.DOTALL)


def test_the_server_sees_the_secret_and_the_command_a_handle(tmp_path: Path) -> None:
    """As it stands there, but for the port, which something else may have here."""
    debian.need("curl", "openssl")
    port = str(free_port())
    server, policy, run = (block.replace("8443", port) for block in BLOCKS)
    ran = subprocess.Popen(
        ["/bin/bash", "-euc", f"{server}\n{policy}\nsleep 1\n{run}\nkill %1"],
        cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
        env={
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "HOME": str(tmp_path / "home"),
            "LANG": "C.UTF-8",
        },
    )  # fmt: skip
    try:
        out, err = ran.communicate(timeout=60)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(ran.pid, signal.SIGKILL)
    assert out == f"the server saw {len('Bearer a-secret-of-twenty-four')} characters\n", err
    assert "were refused" not in err
