"""A server's certificate that is renewed while it serves."""

import os
import socket
import ssl
import threading
from pathlib import Path
from typing import Any

import pytest
import trustme

from coatcheck.platform.server_tls import ServerTls


def write(authority: trustme.CA, directory: Path, *names: str) -> None:
    """As the kubelet writes a Secret's volume: a new directory behind a link, exchanged at once."""
    made = directory / f"..{names[0]}"
    made.mkdir(parents=True)
    issued = authority.issue_cert(*names)
    (made / "tls.crt").write_bytes(b"".join(each.bytes() for each in issued.cert_chain_pems))
    issued.private_key_pem.write_to_path(made / "tls.key")
    link(directory, made)


def link(directory: Path, made: Path) -> None:
    new = directory / "..new"
    new.symlink_to(made.name)
    os.replace(new, directory / "..data")
    for name in ("tls.crt", "tls.key"):
        if not (directory / name).is_symlink():
            (directory / name).symlink_to(f"..data/{name}")


def names_served(tls: ServerTls, authority: trustme.CA) -> set[str]:
    """Of the certificate that a client is shown."""
    trust = ssl.create_default_context()
    trust.check_hostname = False
    authority.configure_trust(trust)
    ours, theirs = socket.socketpair()

    def serve() -> None:
        with ours, tls.context.wrap_socket(ours, server_side=True) as connection:
            connection.recv(1)

    server = threading.Thread(target=serve)
    server.start()
    with theirs, trust.wrap_socket(theirs) as client:
        shown: Any = client.getpeercert()
        client.send(b"x")
    server.join()
    return {str(value) for _, value in shown["subjectAltName"]}


def test_a_renewed_certificate_is_served_without_a_restart(tmp_path: Path) -> None:
    """tls.crt and tls.key, as cert-manager keeps them in a Secret."""
    authority = trustme.CA()
    write(authority, tmp_path, "first.example")
    tls = ServerTls(tmp_path)
    assert names_served(tls, authority) == {"first.example"}
    tls.look()
    write(authority, tmp_path, "second.example")
    assert names_served(tls, authority) == {"first.example"}
    tls.look()
    assert names_served(tls, authority) == {"second.example"}


def test_while_the_files_are_bad_the_old_certificate_stays(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Said once. A key that belongs to another certificate is not served half."""
    authority = trustme.CA()
    write(authority, tmp_path, "first.example")
    tls = ServerTls(tmp_path)
    write(authority, tmp_path, "other.example")
    write(authority, tmp_path, "broken.example")
    (tmp_path / "..broken.example/tls.key").write_bytes((tmp_path / "..other.example/tls.key").read_bytes())
    for _ in range(3):
        tls.look()
    assert names_served(tls, authority) == {"first.example"}
    assert [each.levelname for each in caplog.records] == ["ERROR"]
    with pytest.raises(OSError, match="mismatch"):
        tls.check()
    write(authority, tmp_path, "second.example")
    tls.look()
    assert names_served(tls, authority) == {"second.example"}


def test_one_file_may_hold_certificate_and_key(tmp_path: Path) -> None:
    """And is followed in the same way."""
    authority = trustme.CA()
    file = tmp_path / "both.pem"
    for path in (file, tmp_path):  # or its directory, as older Secrets of the chart have it
        authority.issue_cert("first.example").private_key_and_cert_chain_pem.write_to_path(file)
        tls = ServerTls(path)
        authority.issue_cert("second.example").private_key_and_cert_chain_pem.write_to_path(file)
        os.utime(file, ns=(1, 1))
        tls.look()
        assert names_served(tls, authority) == {"second.example"}


def test_roots_of_clients_are_demanded_or_asked_for(tmp_path: Path) -> None:
    """The shared listener demands a certificate, the control API takes one."""
    authority = trustme.CA()
    write(authority, tmp_path / "own", "first.example")
    authority.cert_pem.write_to_path(tmp_path / "clients.pem")
    roots = tmp_path / "clients.pem"
    assert ServerTls(tmp_path / "own", roots, required=True).context.verify_mode is ssl.CERT_REQUIRED
    assert ServerTls(tmp_path / "own", roots).context.verify_mode is ssl.CERT_OPTIONAL
    assert ServerTls(tmp_path / "own").context.verify_mode is ssl.CERT_NONE
