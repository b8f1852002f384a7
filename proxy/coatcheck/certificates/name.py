"""The one name that a certificate carries.

A name that two verifiers read differently must not get a signature, in no client's name (I7): the
signer takes nothing on trust and holds every name against the one reading of hosts.
"""

import ipaddress

from cryptography import x509

from coatcheck.decision.host import canonical_host


def canonical_san(host: str) -> x509.DNSName | x509.IPAddress:
    """`host` as a subjectAltName. Raises ValueError, without repeating it, unless it is canonical."""
    if canonical_host(host) != host:
        raise ValueError("the host is not in its canonical form")
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)
