"""The webhook as a process, and an API server's way to ask it."""

import datetime
import json
import socket
import ssl
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import rsa

from coatcheck.kubernetes.webhook.configuration import Json
from tests.ports import free_port

SECONDS = 30.0


def write_ca(directory: Path, name: str = "ca", days: int = 3650) -> bytes:
    """As Helm's genCA makes one: RSA, PKCS 1. The certificate: caBundle."""
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    now = datetime.datetime.now(datetime.UTC)
    subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])
    certificate = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=days))
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .add_extension(
            x509.KeyUsage(True, False, True, False, False, True, False, False, False), critical=True
        )
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .sign(key, hashes.SHA256())
    )
    directory.mkdir(exist_ok=True)
    pem = certificate.public_bytes(serialization.Encoding.PEM)
    (directory / "ca.crt").write_bytes(pem)
    (directory / "ca.key").write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.TraditionalOpenSSL,
            serialization.NoEncryption(),
        )
    )
    return pem


@dataclass(frozen=True, slots=True)
class Webhook:
    name: str
    port: int
    trust: ssl.SSLContext = field(repr=False)
    process: subprocess.Popen[bytes] = field(repr=False)

    def ask(self, path: str, body: bytes) -> tuple[int, Json]:
        """Status and answer. TLS is verified for the Service's name, as the API server does."""
        with socket.create_connection(("127.0.0.1", self.port), SECONDS) as plain:
            with self.trust.wrap_socket(plain, server_hostname=self.name) as tls:
                head = (
                    f"POST {path} HTTP/1.1\r\nHost: {self.name}\r\nContent-Type: application/json\r\n"
                    f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n"
                )
                tls.sendall(head.encode() + body)
                answer = b"".join(iter(lambda: tls.recv(65536), b""))
        first, _, content = answer.partition(b"\r\n\r\n")
        said = json.loads(content) if content.startswith(b"{") else {}
        return int(first.split()[1]), said

    def review(self, path: str, asked: Json) -> Json:
        """The `response` of an answer."""
        status, answer = self.ask(path, json.dumps(asked).encode())
        assert status == 200, answer
        response: Json = answer["response"]
        return response


@contextmanager
def running_webhook(arguments: list[str], ca: bytes, log: Path) -> Iterator[Webhook]:
    """`coatcheck admission serve` with these arguments, `--host`, and a port of its own."""
    port = free_port()
    words = [*arguments]
    if "--port" in words:
        at = words.index("--port")
        del words[at : at + 2]
    command = [sys.executable, "-m", "coatcheck", *words, "--host", "127.0.0.1", "--port", str(port)]
    with log.open("ab") as file:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=file, stderr=file)
    name = words[words.index("--name") + 1]
    try:
        trust = ssl.create_default_context(cadata=ca.decode())
        made = Webhook(name, port, trust, process)
        deadline = time.monotonic() + SECONDS
        while not _listens(port):
            assert process.poll() is None and time.monotonic() < deadline, log.read_text()
            time.sleep(0.05)
        yield made
    finally:
        process.terminate()
        assert process.wait(SECONDS) == 0, log.read_text()


def _listens(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), SECONDS).close()
    except OSError:
        return False
    return True
