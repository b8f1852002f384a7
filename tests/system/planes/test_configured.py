"""Settings become the parts of the plane; what does not fit together is refused at start."""

import ssl
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import trustme
from pydantic import ValidationError

from coatcheck.planes.configured import (
    Addresses,
    platform_tokens,
    proxy_tls,
    session_cas,
    upstream_settings,
)
from coatcheck.settings.daemon import Settings
from tests.daemon import running_daemon
from tests.planes.platform import AUDIENCE, ISSUER, Platform
from tests.system.planes.conftest import POLICY
from tests.upstreams import UpstreamTls


def test_upstream_settings_are_read_as_written(tmp_path: Path) -> None:
    """Networks, fixed addresses and the parent proxy."""
    made = upstream_settings(
        Settings(
            allowed_networks=("10.0.0.0/8",),
            connect_to={"api.example:443": "10.1.2.3:8443"},
            parent_proxy="http://proxy.example:3128",
            parent_proxy_credentials=tmp_path / "credentials",
        )
    )
    assert [str(network) for network in made.allowed_networks] == ["10.0.0.0/8"]
    assert made.connect_to == {"api.example:443": ("10.1.2.3", 8443)}
    assert made.parent is not None
    assert (made.parent.host, made.parent.port) == ("proxy.example", 3128)
    assert upstream_settings(Settings()).parent is None


def test_the_shared_listener_demands_a_certificate(tmp_path: Path) -> None:
    """With a client CA there is no way in without one of its certificates."""
    authority = trustme.CA()
    authority.issue_cert("127.0.0.1").private_key_and_cert_chain_pem.write_to_path(tmp_path / "proxy.pem")
    authority.cert_pem.write_to_path(tmp_path / "ca.pem")
    settings = Settings(proxy_tls_certificate=tmp_path / "proxy.pem", proxy_client_ca=tmp_path / "ca.pem")
    tls = proxy_tls(settings)
    assert tls is not None
    assert tls.context.verify_mode is ssl.CERT_REQUIRED
    assert proxy_tls(Settings()) is None


async def test_a_daemon_does_not_start_without_the_keys_that_it_was_told_of(tmp_path: Path) -> None:
    """A missing or broken JWKS is an error at once, not a fleet of refused sandboxes later."""
    settings = Settings(token_jwks_file=tmp_path / "jwks.json", token_issuer=ISSUER, token_audience=AUDIENCE)
    tokens = platform_tokens(settings)
    assert tokens is not None
    with pytest.raises(OSError, match=r"jwks\.json"):
        await tokens.source.read()
    platform = Platform(tmp_path / "jwks.json")
    await tokens.source.read()
    platform.write({"keys": []})
    with pytest.raises(ValueError, match="JWKS"):
        await tokens.source.read()
    assert platform_tokens(Settings()) is None


def test_sessions_have_no_ca_of_their_own_by_default(tmp_path: Path) -> None:
    """The setting asks for it, and it lives as long as a session may."""
    assert session_cas(Settings(), tmp_path) is None
    made = session_cas(Settings(session_ca=True, session_max_age=600), tmp_path)
    assert made is not None
    assert made.lifetime == timedelta(minutes=10)


@pytest.mark.parametrize(
    "given",
    [
        {"token_issuer": ISSUER},
        {"token_jwks_file": Path("/f"), "token_issuer": ISSUER},
        {"token_jwks_file": Path("/f"), "token_issuer": "a|b", "token_audience": AUDIENCE},
        {"proxy_client_ca": Path("/f")},
        {"parent_proxy_credentials": Path("/f")},
        {"transparent_port": 8443},
        {"transparent_port": 8443, "transparent_trust_addresses": True, "transparent_hosts": ()},
    ],
)
def test_halves_are_refused(given: dict[str, Any]) -> None:
    """Settings that mean nothing without another are errors, not silently of no effect."""
    with pytest.raises(ValidationError):
        Settings(**given)


async def test_the_shared_listeners_are_opened_where_the_settings_say(
    tmp_path: Path, all_output: Path, upstream_tls: UpstreamTls
) -> None:
    """The transparent and the DNS listener at each address, under one port each; none by default."""
    wanted: dict[str, Any] = {"upstream_ca": upstream_tls.ca, "connect_to": {}}
    async with running_daemon(all_output / tmp_path.name, POLICY, **wanted) as bare:
        assert bare.addresses == Addresses()
    async with running_daemon(
        all_output / tmp_path.name,
        POLICY,
        **wanted,
        proxy_port=0,
        transparent_hosts=("127.0.0.1", "::1"),
        transparent_port=0,
        transparent_trust_addresses=True,
        dns_port=0,
    ) as full:
        assert full.proxy_address is not None
        for found in (full.addresses.transparent, full.addresses.dns):
            assert [host for host, _ in found] == ["127.0.0.1", "::1"]
            assert len({port for _, port in found}) == 1
        assert full.plane is not None
        assert set(full.addresses.transparent) < full.plane.upstream.own_listeners
