"""The Debian package: built, installed into a bare Debian 13 without a network, used, upgraded, purged."""

import json
import os
import re
import shutil
import stat
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from coatcheck import __version__
from tests.exhaustive.deploy.debian_base import inside, unpacked
from tests.known_secrets import known_secret
from tests.upstreams import UpstreamTls

REPOSITORY = Path(__file__).parents[3]
SECRET = known_secret("the secret of the installed daemon")
NEWER = f"{__version__}+newer"

pytestmark = pytest.mark.needs_debian("debootstrap", "ip")

POLICY = """
version: 1
owner: tests
credentials:
  openai:
    secret: file:models/openai#value
    hosts: [api.openai.com]
    inject: {header: Authorization, value: "Bearer {secret}"}
    env: OPENAI_API_KEY
rules:
  - name: models
    hosts: [api.openai.com]
    methods: [GET]
    credentials: [openai]
"""
SETTINGS = """
# Edited by the operator of this machine.
upstream_ca_file = "/upstream-ca.pem"
allowed_networks = ["127.0.0.0/8"]
secrets_dir = "/var/lib/coatcheck/secrets"
connect_to = {"api.openai.com:443" = "127.0.0.1:8443"}
"""


@dataclass(frozen=True)
class System:
    """A Debian system on a directory, and the package that goes into it."""

    root: Path
    package: Path

    def run(self, *command: str) -> str:
        ran = inside(self.root, *command)
        assert ran.returncode == 0, ran.stdout + ran.stderr
        return ran.stdout

    def install(self, package: Path) -> str:
        """As unattended upgrades do it; without waiting for the disk after each file."""
        (self.root / "new.deb").unlink(missing_ok=True)
        os.link(package, self.root / "new.deb")
        forced = "--force-confdef,confold,unsafe-io"
        return self.run("dpkg", forced, "--install", "/new.deb")

    def first_request(self) -> dict[str, object]:
        shutil.copy(Path(__file__).parent / "first_request.py", self.root / "first_request.py")
        told = self.run("/usr/lib/coatcheck/bin/python3", "-I", "/first_request.py")
        found: dict[str, object] = json.loads(told.splitlines()[-1])
        return found


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built as `deploy/debian/build` builds it, with the quicker compression."""
    built = subprocess.run(
        ["deploy/debian/build", str(tmp_path_factory.mktemp("dist"))],
        cwd=REPOSITORY,
        env=os.environ | {"COMPRESSION": "zstd"},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert built.returncode == 0, built.stderr[-3000:]
    return Path(built.stdout.splitlines()[-1])


@pytest.fixture(scope="module")
def system(package: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[System]:
    """With the package freshly installed. The tests below use it one after the other, as its life goes."""
    root = unpacked(tmp_path_factory.mktemp("debian") / "root")
    system = System(root, package)
    said = system.install(package)
    assert "not started" in said
    yield system
    shutil.rmtree(root)


def control(package: Path, field: str) -> str:
    return subprocess.run(
        ["dpkg-deb", "--field", package, field], capture_output=True, text=True, check=True
    ).stdout.strip()


def test_the_package_says_what_it_needs_and_nothing_of_where_it_was_built(package: Path) -> None:
    """Debian's own Python, of the release that its wheels are for; only root's files, none set-uid."""
    assert control(package, "Version") == __version__
    assert re.search(r"python3 \(>= 3\.1\d\), python3 \(<< 3\.1\d~\)", control(package, "Depends"))
    listed = subprocess.run(["dpkg-deb", "--contents", package], capture_output=True, text=True, check=True)
    for line in listed.stdout.splitlines():
        mode, owner, *_, path = re.sub(r" -> .*| link to .*", "", line).split(None, 5)
        assert owner == "root/root" and "s" not in mode and mode[8] != "w" or mode[0] == "l", line
        assert re.match(r"\./($|usr/|etc/($|coatcheck/))", path), line


def test_installing_starts_nothing_and_enables_nothing(system: System) -> None:
    """There is no policy yet. The user is there; settings are its group's to read and root's to write."""
    assert not list(system.root.glob("etc/systemd/system/*/coatcheck.service"))
    assert not (system.root / "var/lib/coatcheck").exists()
    entry = system.run("getent", "passwd", "coatcheck").strip().split(":")
    assert entry[5:] == ["/var/lib/coatcheck", "/usr/sbin/nologin"] and int(entry[2]) < 1000
    for path in ("etc/coatcheck", "etc/coatcheck/policies"):
        status = (system.root / path).stat()
        assert (status.st_uid, status.st_gid, stat.S_IMODE(status.st_mode)) == (0, int(entry[3]), 0o750)


def test_the_installed_unit_is_the_hardened_one(system: System) -> None:
    """systemd has nothing to say of it, and it is as well protected as the one in the tree."""
    if shutil.which("systemd-analyze") is None:
        pytest.skip("systemd-analyze is not installed: systemd's own view is tested where it is")
    unit = system.root / "usr/lib/systemd/system/coatcheck.service"
    assert "ExecStart=/usr/bin/coatcheck serve\n" in unit.read_text()
    copy = system.root.parent / "coatcheck.service"
    copy.write_text(unit.read_text().replace("/usr/bin/coatcheck", str(REPOSITORY / ".venv/bin/coatcheck")))
    for command in (("verify", "--man=no"), ("security", "--offline=true", "--threshold=17", "--no-pager")):
        done = subprocess.run(
            ["systemd-analyze", *command, copy], capture_output=True, text=True, check=False
        )
        assert (done.returncode, done.stderr) == (0, ""), done.stdout + done.stderr


def test_the_installed_daemon_serves_a_request_as_its_user(system: System, upstream_tls: UpstreamTls) -> None:
    """From the package alone: the sandbox shows a handle, the upstream sees the key."""
    root, uid = system.root, int(system.run("id", "-u", "coatcheck"))
    (root / "etc/coatcheck/policies/default.yaml").write_text(POLICY)
    with (root / "etc/coatcheck/config.toml").open("a") as settings:
        settings.write(SETTINGS)
    (root / "upstream.pem").write_text(upstream_tls.key.read_text() + upstream_tls.certificate.read_text())
    shutil.copy(upstream_tls.ca, root / "upstream-ca.pem")
    (root / "upstream-ca.pem").chmod(0o644)
    secrets = root / "var/lib/coatcheck/secrets/models"
    secrets.mkdir(parents=True)
    (secrets / "openai").write_text(SECRET)
    for path in (secrets.parent.parent, secrets.parent, secrets, secrets / "openai"):
        os.chown(path, uid, uid)
        path.chmod(0o700 if path.is_dir() else 0o600)
    told = system.first_request()
    assert told == told | {"status": 200, "seen": [f"Bearer {SECRET}"], "runs_as": "coatcheck", "code": 0}
    assert told["handle"] != SECRET and __version__ in str(told["version"])


def newer(package: Path, directory: Path) -> Path:
    """A later release, as far as dpkg is concerned: its scripts, and another default in a conffile.

    Without the program, which would be the same hundred megabytes again.
    """
    tree, made = directory / "tree", directory / "newer.deb"
    tree.mkdir()
    subprocess.run(["dpkg-deb", "--control", package, tree / "DEBIAN"], check=True)
    unpacking = (
        f"dpkg-deb --fsys-tarfile {package} | tar -C {tree} -x ./etc ./usr/lib/systemd ./usr/lib/sysusers.d"
    )
    subprocess.run(["bash", "-euo", "pipefail", "-c", unpacking], check=True)
    for path, old, new in (
        ("DEBIAN/control", f"Version: {__version__}", f"Version: {NEWER}"),
        ("etc/coatcheck/config.toml", 'log_format = "json"', 'log_format = "human"'),
    ):
        text = (tree / path).read_text()
        assert old in text
        (tree / path).write_text(text.replace(old, new))
    subprocess.run(["dpkg-deb", "--root-owner-group", "--build", tree, made], check=True)
    return made


def test_an_upgrade_keeps_what_was_edited_and_what_was_remembered(system: System, tmp_path: Path) -> None:
    """The settings as somebody wrote them, the new ones beside them; the whole state; owner and modes."""
    state, settings = system.root / "var/lib/coatcheck", system.root / "etc/coatcheck/config.toml"
    kept = {path: (path.read_bytes(), path.stat().st_uid) for path in state.rglob("*") if path.is_file()}
    edited = settings.read_text()
    assert {"ca.pem", "ca-key.pem", "audit.jsonl", "sessions.db"} <= {path.name for path in kept}
    said = system.install(newer(system.package, tmp_path))
    assert NEWER in system.run("dpkg-query", "--show", "coatcheck") and "not started" not in said
    assert settings.read_text() == edited
    assert 'log_format = "human"' in settings.with_name("config.toml.dpkg-dist").read_text()
    assert kept == {path: (path.read_bytes(), path.stat().st_uid) for path in kept}
    assert stat.S_IMODE((system.root / "etc/coatcheck").stat().st_mode) == 0o750
    assert not list(system.root.glob("etc/systemd/system/*/coatcheck.service"))


def test_removing_takes_the_program_and_purging_the_state(system: System) -> None:
    """A policy is somebody's work and stays even then."""
    root = system.root
    system.run("dpkg", "--remove", "coatcheck")
    assert not (root / "usr/lib/coatcheck").exists() and not (root / "usr/bin/coatcheck").is_symlink()
    assert (root / "var/lib/coatcheck/audit/audit.jsonl").exists()
    assert (root / "etc/coatcheck/config.toml").exists()
    system.run("dpkg", "--purge", "coatcheck")
    assert not (root / "var/lib/coatcheck").exists() and not (root / "etc/coatcheck/config.toml").exists()
    assert (root / "etc/coatcheck/policies/default.yaml").exists()
    (root / "etc/coatcheck/policies/default.yaml").unlink()
