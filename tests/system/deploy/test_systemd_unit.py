"""The systemd unit: accepted by systemd, hardened, explained, and survivable for what we run."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from coatcheck.control.server import STOP_SECONDS
from coatcheck.settings.daemon import Settings

DIRECTORY = Path(__file__).parents[3] / "deploy" / "systemd"
UNIT = DIRECTORY / "coatcheck.service"


def directives() -> dict[str, list[str]]:
    """Key -> its values, in order; systemd lets a key stand several times, which configparser does not."""
    found: dict[str, list[str]] = {}
    for line in UNIT.read_text().splitlines():
        if line and line[0] not in "#[":
            key, _, value = line.partition("=")
            found.setdefault(key, []).append(value)
    return found


def systemd(*command: str | Path) -> subprocess.CompletedProcess[str]:
    if shutil.which(str(command[0])) is None:
        pytest.skip(f"{command[0]} is not installed: systemd's own view is tested where it is")
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


@pytest.fixture
def runnable(tmp_path: Path) -> Path:
    """The unit with a program that exists here, which is all that verification wants of it."""
    copy = tmp_path / "coatcheck.service"
    copy.write_text(re.sub(r"(?m)^ExecStart=\S+", f"ExecStart={sys.executable}", UNIT.read_text()))
    return copy


def test_systemd_finds_nothing_to_say_about_the_unit(runnable: Path) -> None:
    """No unknown key, no ignored value: those would be protections that are not there."""
    done = systemd("systemd-analyze", "verify", "--man=no", runnable)
    assert (done.returncode, done.stderr) == (0, "")


def test_systemd_rates_the_unit_as_well_protected(runnable: Path) -> None:
    """Exposure at most 1.7 of 10; what remains is the network and the users that we need to see."""
    done = systemd("systemd-analyze", "security", "--offline=true", "--threshold=17", "--no-pager", runnable)
    assert done.returncode == 0, done.stdout[-2000:]


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("Type", "notify"), ("NotifyAccess", "main"), ("ExecReload", "/bin/kill -HUP $MAINPID"),
        ("KillSignal", "SIGTERM"), ("StateDirectory", "coatcheck"), ("StateDirectoryMode", "0700"),
        ("RuntimeDirectory", "coatcheck"), ("UMask", "0077"), ("LimitCORE", "0"), ("MemorySwapMax", "0"),
        ("NoNewPrivileges", "yes"), ("CapabilityBoundingSet", ""), ("ProtectSystem", "strict"),
        ("RestrictAddressFamilies", "AF_INET AF_INET6 AF_UNIX"),
        ("Restart", "on-failure"), ("User", "coatcheck"),
    ],
)  # fmt: skip
def test_what_the_invariants_rest_on_stands_in_the_unit(key: str, value: str) -> None:
    """Each once, so that no later line undoes it."""
    assert directives()[key] == [value]


def test_it_is_given_the_time_that_its_own_deadlines_take() -> None:
    """Killed before, it would end sandboxes that were falling asleep, and cut streams that end well."""
    seconds = [
        float(Settings.model_fields[each].default) for each in ("drain_seconds", "sandbox_sleep_seconds")
    ]
    assert float(directives()["TimeoutStopSec"][0]) >= sum(seconds) + STOP_SECONDS


def test_the_unit_holds_no_credential_and_does_not_hide_callers() -> None:
    """A unit file is public; PrivateUsers= would make all uids on the control socket the same."""
    assert not {"Environment", "PrivateUsers", "SetCredential", "DynamicUser"} & directives().keys()


def test_every_line_has_its_reason() -> None:
    """A comment stands above each group of lines: who loosens one must know what for it was."""
    reasoned = False
    for line in UNIT.read_text().splitlines():
        if line.startswith("#"):
            reasoned = not line.startswith("# ---")
        elif not line or line.startswith("["):
            reasoned = line.startswith("[Install]")
        else:
            assert reasoned, line


def test_the_user_of_the_unit_is_made_by_sysusers(tmp_path: Path) -> None:
    """Without a shell, and named as the unit names it."""
    (tmp_path / "etc").mkdir()
    done = systemd("systemd-sysusers", f"--root={tmp_path}", DIRECTORY / "coatcheck.sysusers.conf")
    assert done.returncode == 0, done.stderr
    entries = (tmp_path / "etc" / "passwd").read_text().splitlines()
    (entry,) = [line.split(":") for line in entries if line.startswith(f"{directives()['User'][0]}:")]
    assert entry[5:] == ["/var/lib/coatcheck", "/usr/sbin/nologin"]


WITHOUT_WRITABLE_CODE = """
import ctypes, mmap, sys
PR_SET_MDWE, PR_MDWE_REFUSE_EXEC_GAIN = 65, 1
if ctypes.CDLL(None, use_errno=True).prctl(PR_SET_MDWE, PR_MDWE_REFUSE_EXEC_GAIN, 0, 0, 0) != 0:
    print("unsupported"); sys.exit()
try:
    mmap.mmap(-1, 4096, prot=mmap.PROT_WRITE | mmap.PROT_EXEC)
    sys.exit("the protection is not in force")
except PermissionError:
    pass
import asyncio, datetime, sqlite3
import aiohttp, brotli, hvac, jwt, mitmproxy_rs, prometheus_client, pydantic, zstandard
import mitmproxy.proxy.layers
from OpenSSL import SSL
from coatcheck.certificates.authority import Authority
from coatcheck.certificates.leaf import LeafIssuer
issuer = LeafIssuer(Authority.ephemeral("CA", datetime.timedelta(days=1)))
context = SSL.Context(SSL.TLS_METHOD)
context.use_certificate(issuer.issue("api.example.test").certificate)
context.use_privatekey(issuer.private_key)
context.set_alpn_select_callback(lambda connection, offers: offers[0])
server, client = SSL.Connection(context), SSL.Connection(SSL.Context(SSL.TLS_METHOD))
client.set_alpn_protos([b"http/1.1"])
server.set_accept_state(); client.set_connect_state()
for _ in range(4):
    for end, other in ((client, server), (server, client)):
        try: end.do_handshake()
        except SSL.WantReadError: pass
        try: other.bio_write(end.bio_read(65536))
        except SSL.WantReadError: pass
assert server.get_alpn_proto_negotiated() == b"http/1.1"
asyncio.run(asyncio.sleep(0)); sqlite3.connect(":memory:").execute("select 1")
print("works")
"""


def test_memory_that_is_written_and_executed_is_forbidden_as_soon_as_tls_works_without() -> None:
    """MemoryDenyWriteExecute= is in the unit exactly if a handshake with ALPN succeeds under it: today
    cffi's callbacks forbid that, and an update past that shows here."""
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_WRITABLE_CODE], capture_output=True, text=True, timeout=60, check=False
    )
    if done.stdout == "unsupported\n":
        pytest.skip("this kernel has no PR_SET_MDWE (6.3): it is tested where it has")
    if "MemoryDenyWriteExecute" in directives():
        assert (done.returncode, done.stdout) == (0, "works\n"), done.stderr
    else:
        assert done.returncode == 1, "it works now: set MemoryDenyWriteExecute=yes in the unit"
        assert "MemoryError: Cannot allocate write+execute memory for ffi.callback()" in done.stderr
