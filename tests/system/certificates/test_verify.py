"""certs/verify: what the product makes is well, and a stolen or ending CA is found. What else it finds is in
tests/exhaustive/certificates/test_verify_finds_one_thing_wrong.py."""

import asyncio
import hashlib
from datetime import timedelta
from pathlib import Path

import pytest

from coatcheck.certificates.authority import Authority
from coatcheck.certificates.trust import write_trust_files
from coatcheck.decision.message import Origin, OriginClass
from coatcheck.state.sessions import NewSession
from tests.daemon import running_daemon
from tests.system.certificates.verifying import (
    CA,
    HOST,
    ISSUER,
    STRANGER,
    Said,
    verify,
)
from tests.upstreams import UpstreamTls

pytestmark = pytest.mark.needs_debian("openssl")


# --- what is well -----------------------------------------------------------------------------------------


def test_what_the_product_makes_is_well(tmp_path: Path) -> None:
    """The CA, the files for clients, a leaf with its name; and what each is for is said."""
    files = write_trust_files(tmp_path, CA.pem)
    (tmp_path / "leaf.pem").write_bytes(ISSUER.issue(HOST).pem)
    said = verify(
        files.ca, "--bundle", files.bundle, "--leaf", tmp_path / "leaf.pem", "--host", HOST,
        "--name-constraint", "example.test",
    )  # fmt: skip
    assert (said.code, said.err) == (0, "")
    ca, bundle, leaf = said.out.splitlines()
    assert ca.startswith(f"OK: CA CN=Coatcheck CA (sha256 {CA.fingerprint[:16]}…): for example.test, until ")
    assert bundle == f"OK: bundle {files.bundle}: it trusts the CA"
    assert leaf.startswith(f"OK: leaf CN={HOST} (sha256 ") and f": for {HOST}, until " in leaf


@pytest.mark.parametrize(("days", "warned"), [(29, True), (31, False)])
def test_a_ca_that_ends_soon_is_a_warning(days: int, warned: bool, tmp_path: Path) -> None:
    """From when the alert fires; it is not wrong yet."""
    (tmp_path / "ca.pem").write_bytes(Authority.ephemeral("CA", timedelta(days=days)).pem)
    said = verify(tmp_path / "ca.pem")
    assert (said.code, "warning: CA " in said.out) == (0, warned)


# --- a CA that is not -------------------------------------------------------------------------------------


# --- a leaf that is not -----------------------------------------------------------------------------------


# --- a bundle that is not ---------------------------------------------------------------------------------


def test_a_bundle_that_still_trusts_a_stolen_ca_is_found(tmp_path: Path) -> None:
    """After a theft the new CA is trusted alone; an image may still hold the old one."""
    files = write_trust_files(tmp_path, CA.pem + STRANGER.pem)
    (tmp_path / "new.pem").write_bytes(CA.pem)
    said = verify(tmp_path / "new.pem", "--bundle", files.bundle)
    assert said.code == 1 and "it trusts another CA of the same name, too" in said.out
    assert STRANGER.fingerprint[:16] in said.out


# --- what cannot be checked -------------------------------------------------------------------------------


# --- a running daemon -------------------------------------------------------------------------------------

POLICY = "version: 1\nowner: tests\nrules:\n  - {name: docs, hosts: [upstream.example], methods: [GET]}\n"


async def test_a_running_daemons_leaf_is_asked_for_and_checked(
    tmp_path: Path, upstream_tls: UpstreamTls
) -> None:
    """By a session's own port, and by the shared one with a password; the upstream hears nothing of it."""
    upstream: list[bytes] = []

    async def hear(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        upstream.append(await reader.read(1))
        writer.close()

    listening = await asyncio.start_server(hear, "127.0.0.1", 0)
    port = listening.sockets[0].getsockname()[1]
    async with running_daemon(
        tmp_path, POLICY, upstream_ca=upstream_tls.ca, connect_to={"upstream.example:443": port}, proxy_port=0
    ) as daemon:
        sandbox = await daemon.sandbox()
        daemon.state.open_session(
            NewSession(
                tenant="acme",
                subject="agent",
                policy="default",
                origin=Origin(OriginClass.BEARER, hashlib.sha256(b"pa 55").hexdigest()),
            ),
            "test",
        )
        assert daemon.proxy_address is not None
        shared = f"127.0.0.1:{daemon.proxy_address[1]}"
        foreign = tmp_path / "foreign.pem"
        foreign.write_bytes(STRANGER.pem)

        async def ask(ca: Path, proxy: str, host: str = "upstream.example") -> Said:
            return await asyncio.to_thread(verify, ca, "--proxy", proxy, "--host", host)

        for proxy in (sandbox.proxy, f"http://sandbox:pa%2055@{shared}"):
            said = await ask(daemon.trust.ca, proxy)
            assert (said.code, said.out.count("OK: ")) == (0, 2), said
            assert "OK: leaf CN=upstream.example" in said.out
        said = await ask(foreign, sandbox.proxy)
        assert said.code == 1 and "the CA did not sign it" in said.out
        said = await ask(daemon.trust.ca, sandbox.proxy, "elsewhere.example")
        assert (
            said.code == 3
            and "elsewhere.example" in said.err
            and "that the session's policy allows" in said.err
        )
        said = await ask(daemon.trust.ca, f"http://sandbox:wrong@{shared}")
        assert said.code == 3 and " 407 " in said.err
    listening.close()
    assert upstream == []
