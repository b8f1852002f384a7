"""Debian's docker-registry on loopback: TLS with a CA of its own, a password, and images pushed by skopeo."""

import base64
import json
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import trustme

from coatcheck.images.registry import Access, Reference
from tests.debian import find
from tests.ports import free_port

USER, PASSWORD = "puller", "of-the-registry"
_SALT = "$2a$04$" + "abcdefghijklmnopqrstuu"


@dataclass(frozen=True, slots=True)
class Registry:
    port: int
    place: Path
    process: "subprocess.Popen[bytes]"

    @property
    def host(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def access(self) -> Access:
        return Access(self.place / "auth.json", self.place / "certs")

    def push(self, archive: Path, name: str) -> Reference:
        """What `docker save` wrote, as `name:latest`."""
        digest = self.place / "digest"
        words = [
            *("skopeo", "--insecure-policy", "copy", "--quiet", "--digestfile", str(digest)),
            *("--dest-cert-dir", str(self.place / "certs"), "--dest-authfile", str(self.place / "auth.json")),
            *(f"docker-archive:{archive}", f"docker://{self.host}/{name}:latest"),
        ]
        subprocess.run(words, check=True, capture_output=True, timeout=60)
        return Reference(f"{self.host}/{name}", digest.read_text().strip(), self.access)

    def blobs(self) -> list[Path]:
        """What it keeps, largest first."""
        found = (self.place / "kept").rglob("blobs/sha256/*/*/data")
        return sorted(found, key=lambda path: -path.stat().st_size)

    def stop(self) -> None:
        self.process.kill()
        self.process.wait()


@contextmanager
def running(place: Path) -> Iterator[Registry]:
    """One in `place`, ready."""
    port = free_port()
    authority = trustme.CA()
    (place / "certs").mkdir(parents=True)
    authority.cert_pem.write_to_path(place / "certs/ca.crt")
    issued = authority.issue_cert("127.0.0.1")
    issued.private_key_pem.write_to_path(place / "key.pem")
    for number, one in enumerate(issued.cert_chain_pems):
        one.write_to_path(place / "cert.pem", append=number > 0)
    # perl's crypt(3) knows bcrypt, which is all that the registry takes.
    program = "print crypt($ARGV[0], $ARGV[1])"
    hashed = subprocess.run(
        ["perl", "-e", program, PASSWORD, _SALT], check=True, capture_output=True, text=True
    ).stdout
    (place / "htpasswd").write_text(f"{USER}:{hashed}\n")
    token = base64.b64encode(f"{USER}:{PASSWORD}".encode()).decode()
    (place / "auth.json").write_text(json.dumps({"auths": {f"127.0.0.1:{port}": {"auth": token}}}))
    (place / "auth.json").chmod(0o600)
    (place / "config.yml").write_text(f"""
version: 0.1
log: {{level: error}}
storage: {{filesystem: {{rootdirectory: {place}/kept}}}}
http:
  addr: 127.0.0.1:{port}
  tls: {{certificate: {place}/cert.pem, key: {place}/key.pem}}
auth: {{htpasswd: {{realm: test, path: {place}/htpasswd}}}}
""")
    program_path = find("docker-registry")
    assert program_path is not None
    with (place / "log").open("wb") as log:
        process = subprocess.Popen([program_path, "serve", str(place / "config.yml")], stdout=log, stderr=log)
    try:
        _wait(port, process, place / "log")
        yield Registry(port, place, process)
    finally:
        process.kill()
        process.wait()


def _wait(port: int, process: "subprocess.Popen[bytes]", log: Path) -> None:
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        assert process.poll() is None, log.read_text()
        try:
            urllib.request.urlopen(f"http://127.0.0.1:{port}/", timeout=5)
        except urllib.error.HTTPError:
            return  # it says that this is an HTTPS port
        except OSError:
            time.sleep(0.05)
    raise AssertionError(log.read_text())
