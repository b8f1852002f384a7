import ssl
import stat
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.x509.verification import PolicyBuilder, Store, VerificationError

from demo.upstreams.certificate import upstream_certificate


def test_the_certificate_holds_for_its_names_only(tmp_path: Path) -> None:
    """Verified by cryptography's own path validation, which follows the web's rules."""
    files = upstream_certificate(tmp_path, ["api.openai.com", "github.com"])
    ca, leaf = (x509.load_pem_x509_certificate(file.read_bytes()) for file in (files.ca, files.certificate))
    builder = PolicyBuilder().store(Store([ca]))
    for name in ("api.openai.com", "github.com"):
        assert builder.build_server_verifier(x509.DNSName(name)).verify(leaf, [])
    with pytest.raises(VerificationError):
        builder.build_server_verifier(x509.DNSName("attacker.example")).verify(leaf, [])


def test_servers_and_clients_can_load_the_files(tmp_path: Path) -> None:
    """And only their owner can read the key."""
    files = upstream_certificate(tmp_path, ["api.openai.com"])
    ssl.create_default_context(ssl.Purpose.CLIENT_AUTH).load_cert_chain(files.certificate, files.key)
    assert ssl.create_default_context(cafile=str(files.ca)).cert_store_stats()["x509_ca"] == 1
    assert stat.S_IMODE(files.key.stat().st_mode) == 0o600
