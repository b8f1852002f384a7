"""Proxy variables, open ranges, fixed addresses, taken ports."""

import socket
from pathlib import Path

import pytest

from coatcheck.doctor.finding import Level
from coatcheck.doctor.network import allowed_networks, ports, surroundings
from tests.doctor.subject import only, subject


def test_proxy_variables_and_a_token_in_the_environment(tmp_path: Path) -> None:
    """They are named; what they hold is not."""
    environment = {"HTTPS_PROXY": "http://u:hidden@proxy", "no_proxy": "x", "COATCHECK_VAULT_TOKEN": "hidden"}
    proxies, token = surroundings(subject(tmp_path, environment=environment))
    assert proxies.level is token.level is Level.WARNING
    assert proxies.message.startswith("HTTPS_PROXY, no_proxy are set")
    assert "hidden" not in f"{proxies}{token}"
    assert only(surroundings(subject(tmp_path, environment={"PATH": "/bin"}))).level is Level.OK


@pytest.mark.parametrize(
    ("network", "level"),
    [
        ("0.0.0.0/0", Level.PROBLEM),
        ("::/0", Level.PROBLEM),
        ("169.254.0.0/16", Level.WARNING),
        ("127.0.0.0/8", Level.WARNING),
        ("10.20.0.0/16", Level.OK),
    ],
)
def test_ranges_that_are_opened_too_wide(network: str, level: Level, tmp_path: Path) -> None:
    """Everything, the metadata services' neighbourhood, this machine; a range of one's own is fine."""
    assert only(allowed_networks(subject(tmp_path, allowed_networks=(network,)))).level is level


@pytest.mark.parametrize(
    ("target", "said"),
    [
        ("169.254.169.254:80", "cloud metadata service"),
        ("10.1.1.1:443", "private (RFC 1918)"),
        ("db.internal:443", "is no address"),
        ("nonsense", "cannot be read"),
    ],
)
def test_fixed_addresses_that_would_be_refused(target: str, said: str, tmp_path: Path) -> None:
    """`connect_to` is screened like any other address, and says so before the first request."""
    found = only(allowed_networks(subject(tmp_path, connect_to={"api.example.com:443": target})))
    assert found.level is Level.PROBLEM and said in found.message
    if said == "private (RFC 1918)":
        opened = subject(
            tmp_path, connect_to={"api.example.com:443": target}, allowed_networks=("10.1.0.0/16",)
        )
        assert only(allowed_networks(opened)).level is Level.OK


def test_a_port_that_somebody_else_has(tmp_path: Path) -> None:
    """Unless that is the daemon itself; a free one is fine, an address of another machine is not."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        found = only(ports(subject(tmp_path, proxy_port=port)))
        assert (
            found.level is Level.PROBLEM and f"another process listens on 127.0.0.1:{port}" in found.message
        )
        assert only(ports(subject(tmp_path, proxy_port=port, daemon_pid=1))).level is Level.OK
    assert only(ports(subject(tmp_path, proxy_port=port))).level is Level.OK
    found = only(ports(subject(tmp_path, proxy_port=port, proxy_host="192.0.2.7")))
    assert found.level is Level.PROBLEM and "proxy_port: 192.0.2.7" in found.message
