"""Limiting a CA to some domains, so that its key, stolen, is worth little elsewhere (RFC 5280, 4.2.1.10)."""

import ipaddress

from cryptography import x509

from coatcheck.certificates.name import canonical_san
from coatcheck.certificates.profile import PROFILE


def constraints(domains: tuple[str, ...]) -> x509.NameConstraints:
    """Each of `domains`, with all below it, and no address. Raises ValueError for what is no domain."""
    permitted: list[x509.GeneralName] = []
    for domain in domains:
        try:
            name = canonical_san(domain)
        except ValueError as error:
            raise ValueError(f"{domain!r} cannot be a name constraint") from error
        if isinstance(name, x509.IPAddress):
            raise ValueError(f"{domain} is an address: name constraints are domains here")
        permitted.append(name)
    # Constraints bind only the forms that they mention: without this a CA limited to example.com could
    # still sign for every address.
    networks = [ipaddress.ip_network(network) for network in PROFILE.ca.constrained_excludes]
    return x509.NameConstraints(permitted, [x509.IPAddress(network) for network in networks])


def permits(certificate: x509.Certificate, host: str) -> bool:
    """Whether a client will believe the CA of `certificate` for canonical `host`."""
    try:
        found = certificate.extensions.get_extension_for_class(x509.NameConstraints).value
    except x509.ExtensionNotFound:
        return True
    if isinstance(canonical_san(host), x509.IPAddress):
        return False  # `constraints` excludes all of them
    domains = [name.value for name in found.permitted_subtrees or () if isinstance(name, x509.DNSName)]
    return any(host == domain or host.endswith("." + domain) for domain in domains)
