"""Name constraints, as we read them ourselves; what openssl makes of them stands in test_leaf.py."""

from datetime import timedelta

import pytest
from cryptography import x509

from coatcheck.certificates.authority import Authority
from coatcheck.certificates.name_constraints import constraints, permits


def test_a_constrained_ca_is_critical_about_it_and_excludes_all_addresses() -> None:
    """Critical: a client that does not know the extension must refuse, not ignore it."""
    certificate = Authority.ephemeral("bound", timedelta(days=1), ("example.com",)).certificate
    extension = certificate.extensions.get_extension_for_class(x509.NameConstraints)
    assert extension.critical
    assert extension.value.permitted_subtrees == [x509.DNSName("example.com")]
    assert [str(name.value) for name in extension.value.excluded_subtrees or ()] == ["0.0.0.0/0", "::/0"]


def test_permits_reads_constraints_as_clients_do() -> None:
    """A domain and all below it, no look-alike, no address."""
    bound = Authority.ephemeral("bound", timedelta(days=1), ("example.com", "example.org"))
    for host in ("example.com", "a.example.com", "b.a.example.org"):
        assert permits(bound.certificate, host) and bound.permits(host)
    for host in ("badexample.com", "com", "example.com.evil.test", "192.0.2.1", "2001:db8::1"):
        assert not permits(bound.certificate, host) and not bound.permits(host)


@pytest.mark.parametrize("host", ["anything.test", "192.0.2.1"])
def test_without_constraints_everything_is_permitted(host: str) -> None:
    """Addresses too."""
    assert permits(Authority.ephemeral("free", timedelta(days=1)).certificate, host)


@pytest.mark.parametrize("domain", ["*.example.com", ".example.com", "Example.com", "192.0.2.1", ""])
def test_what_is_no_plain_domain_is_refused(domain: str) -> None:
    """Clients differ in what a leading dot or a star would mean."""
    with pytest.raises(ValueError, match="name constraint"):
        constraints(("example.org", domain))
