"""The demo as a stranger runs it: a process, its output in a pipe."""

import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from demo.main import check_requirements, main
from demo.requirement import DemoError

pytestmark = [
    pytest.mark.needs_debian("bwrap", "git", "curl", "node", "nft", "ip", "qemu-system-x86_64", "mke2fs"),
]

COMMAND = (sys.executable, "-m", "demo")
SECONDS = 500
"""It takes about 100; an emulated guest on a machine that is busy otherwise takes some times that."""
LOOKS_LIKE_A_SECRET = re.compile(
    r"sk-proj-\w{8}|sk-ant-api03-\w{8}|ghp_\w{8}|int_\w{8}|cch_ey\w{8}|PRIVATE KEY|hvs\.\w{8}|\bs\.\w{20}"
)


@pytest.fixture
def scratch() -> Iterator[Path]:
    """The run's own TMPDIR: whatever it leaves behind is in there, or names it."""
    # Not tmp_path: a Unix socket's path must be short.
    with tempfile.TemporaryDirectory(prefix="d-") as directory:
        yield Path(directory)
        assert list(Path(directory).iterdir()) == []
        assert _processes_naming(directory) == []


def _processes_naming(text: str) -> list[str]:
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            told = (process / "environ").read_bytes() + (process / "cmdline").read_bytes()
        except OSError:
            continue
        if text.encode() in told and process.name != str(os.getpid()):
            found.append(told.decode(errors="replace")[:200])
    return found


def _run(scratch: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    variables = dict(os.environ) | {"TMPDIR": str(scratch)} | environment
    return subprocess.run(COMMAND, env=variables, capture_output=True, text=True, timeout=SECONDS)


def test_it_shows_a_sandbox_without_secrets_and_six_refused_attacks(scratch: Path) -> None:
    """Exit 0, plain text, and nothing that looks like a secret or a handle in what it prints."""
    ran = _run(scratch)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    lines = ran.stdout.splitlines()
    assert lines[0].startswith("Coatcheck demo: isolated: own user, network, process, IPC, UTS and mount")
    for client in ("openai SDK", "anthropic SDK, streaming", "curl", "git clone", "git push", "Node fetch"):
        assert re.search(
            rf"^  {client}.* handle [0-9a-f]{{8}} +secret [0-9a-f]{{8}}, genuine", ran.stdout, re.MULTILINE
        )
    assert (
        len(re.findall(r"^Attack \d: ", ran.stdout, re.MULTILINE))
        == len(re.findall(r"^  \[ok\] ", ran.stdout, re.MULTILINE))
        == 6
    )
    assert re.search(
        r"^  allowed    POST https://api.openai.com with handle [0-9a-f]{8}: 200", ran.stdout, re.MULTILINE
    )
    assert "elsewhere  https://attacker.example: 403 host_not_allowed" in ran.stdout
    assert "0 of 6 secrets" in ran.stdout and "6 of 6 refused" in ran.stdout
    assert "hash chain intact" in ran.stdout
    act = ran.stdout.partition("\nMicroVM: ")[2].partition("\nSummary")[0]
    assert "Claude Code, as claude-agent-sdk brings it" in act and "tells 8 of the 8 findings" in act
    assert re.search(r"isolation  (emulated|hardware): ", act)
    assert act.index(" nothing found\n") < act.index("  planted ") < act.index(" found: anthropic in ")
    assert act.count("signed by the daemon's key") == 2
    assert re.search(r"left of its \d+ processes: 0, of its directory: nothing", act)
    assert "\x1b" not in ran.stdout and not LOOKS_LIKE_A_SECRET.search(ran.stdout)
    assert max(map(len, lines)) <= 100
    assert ran.stderr == ""


def test_without_namespaces_the_first_line_says_so(scratch: Path, tmp_path: Path) -> None:
    """It runs all the same, claims no more than it can, and shows what isolation is for."""
    for command in ("git", "curl", "node", "setpriv"):
        (tmp_path / command).symlink_to(shutil.which(command) or "/missing")
    ran = _run(scratch, PATH=str(tmp_path), CI="")
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert ran.stdout.startswith("Coatcheck demo: not isolated: bubblewrap is missing")
    assert "5 of 6 refused" in ran.stdout
    assert "not shown  unshare is missing" in ran.stdout
    assert "not shown  qemu-system-x86_64 is missing" in ran.stdout
    assert not LOOKS_LIKE_A_SECRET.search(ran.stdout)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_interrupted_it_leaves_nothing_behind(scratch: Path, number: signal.Signals) -> None:
    """Ctrl-C in the middle: the daemon, OpenBao, the sandboxes and all files are gone (see `scratch`)."""
    with subprocess.Popen(
        COMMAND, env=dict(os.environ) | {"TMPDIR": str(scratch)}, stdout=subprocess.PIPE, text=True
    ) as demo:
        assert demo.stdout is not None
        for line in demo.stdout:
            if line.startswith("  openai SDK"):
                break
        demo.send_signal(number)
        rest = demo.stdout.read()
        assert demo.wait(60) == 130
    assert "has been stopped" in rest


def test_killed_outright_it_takes_everything_along(scratch: Path) -> None:
    """kill -9 runs no cleanup: its processes end because the kernel tells them to. Files may stay."""
    with subprocess.Popen(
        COMMAND, env=dict(os.environ) | {"TMPDIR": str(scratch)}, stdout=subprocess.PIPE, text=True
    ) as demo:
        assert demo.stdout is not None
        for line in demo.stdout:
            if line.startswith("  openai SDK"):
                break
        assert _processes_naming(str(scratch)) != []
        demo.kill()
        demo.wait(10)
        deadline = time.monotonic() + 20
        while _processes_naming(str(scratch)) and time.monotonic() < deadline:
            time.sleep(0.1)
        assert _processes_naming(str(scratch)) == []
    for left in scratch.iterdir():
        shutil.rmtree(left)


NO_MICROVM = """
from demo import acts
async def skip(report, stage):
    pass
acts.show_microvm = skip
"""
"""An act of its own, which these defects are not about."""
LEAK = """
from demo import acts
def introduce(report, stage, session):
    session.outlet.handles["LEAKED"] = stage.keys["openai"]
acts._introduce = introduce
"""
NO_SCRUBBING = """
from demo import stage
def copy(source, target):
    own = "env: INTERNAL_TOKEN"
    target.write_text(source.read_text().replace(own, own + "\\n    scrub: {off: for the test}"))
stage.shutil.copyfile = copy
"""


def test_it_fails_when_a_secret_gets_into_the_sandbox(scratch: Path) -> None:
    """Exit 1, what differed, and where the logs are: a demo that cannot fail shows nothing. Each defect has
    its own line."""
    program = f"{NO_MICROVM}{LEAK}{NO_SCRUBBING}\nfrom demo.main import main\nraise SystemExit(main())"
    ran = subprocess.run(
        [sys.executable, "-c", program],
        env=dict(os.environ) | {"TMPDIR": str(scratch)},
        capture_output=True,
        text=True,
        timeout=SECONDS,
    )
    assert ran.returncode == 1, ran.stdout + ran.stderr
    for says in (
        "no secret in the sandbox, but found the openai secret",
        "the echo in Base64 holds no secret",
    ):
        assert f"  DIFFERS: {says}" in ran.stdout and f"  - {says}" in ran.stdout
    assert "6 of 6 refused" not in ran.stdout
    (logs,) = scratch.iterdir()
    assert ran.stdout.splitlines()[-1] == f"The logs are in {logs}"
    assert {path.name for path in logs.iterdir()} == {"demo.log", "daemon.log", "openbao.log"}
    shutil.rmtree(logs)


def test_a_missing_client_is_told_with_the_line_that_installs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before anything is started."""
    monkeypatch.setattr("demo.main.PATH", "/nowhere")
    with pytest.raises(DemoError, match="git, curl, nodejs") as missing:
        check_requirements()
    assert missing.value.hint == "apt-get install git curl nodejs"


def test_unknown_arguments_are_refused() -> None:
    """A flag that does nothing would be believed."""
    with pytest.raises(DemoError, match="takes no arguments, not --fast"):
        main(["--fast"])
