"""Who is asking, by proofs that may contradict each other."""

import asyncio
import hashlib
import ssl
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import trustme
from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding

from coatcheck.client.control import ControlClient, ControlError
from coatcheck.control.caller import Caller, Role
from coatcheck.control.grants import Grants
from coatcheck.control.identity import Channel, identify
from coatcheck.control.problem import ControlProblem
from tests.daemon import TestDaemon, running_daemon
from tests.system.control.conftest import CALLERS, grants_toml, token_of
from tests.upstreams import UpstreamTls

A, B = Caller("a", Role.AUDITOR), Caller("b", Role.OPERATOR)
GRANTS = Grants({10: A}, ((hashlib.sha256(b"token of b").digest(), B),))


def who(channel: Channel, authorization: str | None) -> str:
    try:
        return identify(channel, authorization, GRANTS).name
    except ControlProblem as problem:
        return problem.reason


@pytest.mark.parametrize(
    ("uid", "authorization", "name"),
    [
        (10, None, "a"),
        (11, None, "unauthenticated"),
        (None, None, "unauthenticated"),
        (None, "Bearer token of b", "b"),
        (None, "bearer token of b", "b"),
        (None, "Bearer token of a", "unauthenticated"),
        (None, "Basic token of b", "unauthenticated"),
        (None, "Bearer", "unauthenticated"),
        (10, "Bearer token of b", "b"),  # a token that is sent counts, whatever the socket says
        (10, "Bearer wrong", "unauthenticated"),  # and is not quietly somebody else
    ],
)
def test_what_is_proved(uid: int | None, authorization: str | None, name: str) -> None:
    """A uid is the kernel's word; a token counts before it, also when it is wrong."""
    assert who(Channel(uid, None), authorization) == name


def test_a_certificate_that_cannot_be_read_proves_nothing() -> None:
    """TLS verified it, and still: no caller."""
    assert who(Channel(None, b"no DER"), None) == "unauthenticated"


@pytest.fixture
async def mtls(
    short_dir: Path, all_output: Path, upstream_tls: UpstreamTls
) -> AsyncIterator[tuple[TestDaemon, Path]]:
    """A daemon whose control API speaks TLS; the directory has client certificates beside its CA."""
    authority, strangers = trustme.CA(), trustme.CA()
    server = authority.issue_cert("127.0.0.1")
    by_hash, by_subject = authority.issue_cert("by-hash"), authority.issue_cert("b", common_name="by subject")
    for name, made in {
        "server": server,
        "by-hash": by_hash,
        "by-subject": by_subject,
        "unlisted": authority.issue_cert("unlisted"),
        "stranger": strangers.issue_cert("by-hash"),
    }.items():
        made.private_key_and_cert_chain_pem.write_to_path(short_dir / f"{name}.pem")
    authority.cert_pem.write_to_path(short_dir / "ca.pem")

    def parsed(made: trustme.LeafCert) -> x509.Certificate:
        return x509.load_pem_x509_certificate(made.cert_chain_pems[0].bytes())

    digest = hashlib.sha256(parsed(by_hash).public_bytes(Encoding.DER)).hexdigest()
    grants = short_dir / "grants.toml"
    grants.write_text(
        grants_toml(
            {
                "by-hash": CALLERS["auditor"] | {"certificate_sha256": digest},
                "by-subject": CALLERS["operator"]
                | {"certificate_subject": parsed(by_subject).subject.rfc4514_string()},
                "auditor": CALLERS["auditor"],
            }
        )
    )
    async with running_daemon(
        all_output / short_dir.name,
        "version: 1\nowner: tests\n",
        upstream_ca=upstream_tls.ca,
        connect_to={},
        control_port=0,
        control_grants=grants,
        control_tls_certificate=short_dir / "server.pem",
        control_client_ca=short_dir / "ca.pem",
    ) as daemon:
        yield daemon, short_dir


async def test_client_certificates_over_tls(mtls: tuple[TestDaemon, Path]) -> None:
    """By hash and by subject; unlisted, of another CA, or against the token's word: refused."""
    daemon, directory = mtls
    assert daemon.control is not None
    url = "https://{}:{}".format(*daemon.control.addresses[0])

    def got(certificate: str | None, token: str | None = None) -> str:
        client = ControlClient(
            url=url,
            token=token,
            ca_file=directory / "ca.pem",
            certificate=directory / f"{certificate}.pem" if certificate else None,
        )
        try:
            client.reload()
        except ControlError as error:
            return error.reason
        return "reloaded"

    said = {name: await asyncio.to_thread(got, name) for name in ("by-hash", "by-subject", "unlisted", None)}
    assert said == {
        "by-hash": "forbidden",  # an auditor
        "by-subject": "reloaded",  # an operator
        "unlisted": "unauthenticated",
        None: "unauthenticated",
    }
    assert await asyncio.to_thread(got, None, token_of("auditor")) == "forbidden"
    assert await asyncio.to_thread(got, "by-subject", token_of("auditor")) == "unauthenticated"
    assert await asyncio.to_thread(got, "stranger") == "unreachable"


async def test_plain_http_gets_nothing_where_tls_is_spoken(mtls: tuple[TestDaemon, Path]) -> None:
    """A token that is sent in the clear is not answered."""
    daemon, _ = mtls
    assert daemon.control is not None
    reader, writer = await asyncio.open_connection(*daemon.control.addresses[0])
    writer.write(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
    try:
        got = await asyncio.wait_for(reader.read(), 10)
    except (ConnectionError, ssl.SSLError):
        got = b""
    writer.close()
    assert not got.startswith(b"HTTP")
