"""The name in a certificate is the canonical one, in its own kind, or there is none."""

import ipaddress

import pytest
from cryptography import x509

from coatcheck.certificates.name import canonical_san


@pytest.mark.parametrize("host", ["localhost", "api.example.test", "xn--bcher-kva.example"])
def test_a_name_becomes_a_dns_name(host: str) -> None:
    """As it is."""
    assert canonical_san(host) == x509.DNSName(host)


@pytest.mark.parametrize("host", ["192.0.2.7", "2001:db8::7"])
def test_an_address_becomes_an_address(host: str) -> None:
    """As a DNS name, verifiers would read it or not read it, each its own way (RFC 6125, 1.7.2)."""
    assert canonical_san(host) == x509.IPAddress(ipaddress.ip_address(host))


@pytest.mark.parametrize(
    "host",
    ["*.example.test", "API.example.test", "api.example.test.", "[2001:db8::7]", "2001:DB8::7", "1.2.3", ""],
)
def test_any_other_form_is_refused(host: str) -> None:
    """Also those that the one reading of hosts would fold: the signer is handed the result, or nothing.
    The message does not repeat what a sandbox may have put there."""
    with pytest.raises(ValueError) as refusal:  # noqa: PT011
        canonical_san(host)
    assert not host or host not in str(refusal.value)
