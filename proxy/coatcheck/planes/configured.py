"""From settings to what the plane is made of; `serve` puts it together."""

from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

from coatcheck.decision.address import parse_networks
from coatcheck.decision.host import split_authority
from coatcheck.planes.listeners.listener import TRANSPARENT_LISTENER, Listeners, SharedListener
from coatcheck.planes.mitm.session_ca import SessionCas
from coatcheck.planes.origins.platform_keys import KeyFile, KeyUrl
from coatcheck.planes.origins.platform_token import PlatformTokens
from coatcheck.planes.upstream.upstream import ParentProxy, UpstreamSettings
from coatcheck.platform.server_tls import ServerTls
from coatcheck.settings.daemon import Settings, parse_parent_proxy

type Address = tuple[str, int]


@dataclass(frozen=True, slots=True)
class Addresses:
    """Where the shared listeners are, as bound."""

    proxy: Address | None = None
    transparent: tuple[Address, ...] = ()
    dns: tuple[Address, ...] = ()


async def open_shared(listeners: Listeners, settings: Settings, tls: ServerTls | None) -> Addresses:
    """Open the listeners that several sandboxes use. OSError when an address cannot be had."""
    proxy: Address | None = None
    transparent: list[Address] = []
    dns: list[Address] = []
    if settings.proxy_port is not None:
        trusted = settings.proxy_trust_addresses
        shared = SharedListener(
            "proxy",
            settings.proxy_host,
            settings.proxy_port,
            trusted,
            tls.context if tls is not None else None,
            share_port=settings.proxy_share_port,
        )
        proxy = await listeners.open_shared(shared)
    for host in settings.transparent_hosts:  # port 0: the one that the first address got, at all of them
        if settings.transparent_port is not None:
            port = settings.transparent_port or (transparent[0][1] if transparent else 0)
            trusted = settings.transparent_trust_addresses
            shared = SharedListener(TRANSPARENT_LISTENER, host, port, trusted, transparent=True)
            transparent.append(await listeners.open_shared(shared))
        if settings.dns_port is not None:
            dns.append(await listeners.open_dns(host, settings.dns_port or (dns[0][1] if dns else 0)))
    return Addresses(proxy, tuple(transparent), tuple(dns))


def upstream_settings(settings: Settings) -> UpstreamSettings:
    parent = None
    if settings.parent_proxy is not None:
        parent = ParentProxy(*parse_parent_proxy(settings.parent_proxy), settings.parent_proxy_credentials)
    return UpstreamSettings(
        parent=parent,
        allowed_networks=parse_networks(settings.allowed_networks),
        connect_to={name: split_authority(to, None) for name, to in settings.connect_to.items()},
        name_servers=settings.name_servers,
    )


def platform_tokens(settings: Settings) -> PlatformTokens | None:
    """The verifier of sandboxes' platform tokens. A daemon reads its keys before it starts."""
    if settings.token_issuer is None or settings.token_audience is None:
        return None
    if settings.token_jwks_url is not None:
        source: KeyFile | KeyUrl = KeyUrl(
            settings.token_jwks_url, settings.token_jwks_ca_file, settings.token_jwks_bearer_file
        )
    elif settings.token_jwks_file is not None:
        source = KeyFile(settings.token_jwks_file)
    else:
        return None
    return PlatformTokens(source, settings.token_issuer, settings.token_audience)


def proxy_tls(settings: Settings) -> ServerTls | None:
    """The shared listener's TLS: it demands a certificate of the sandboxes' CA. OSError: bad files."""
    if settings.proxy_tls_certificate is None or settings.proxy_client_ca is None:
        return None
    return ServerTls(settings.proxy_tls_certificate, settings.proxy_client_ca, required=True)


def session_cas(settings: Settings, directory: Path) -> SessionCas | None:
    """The sessions' own CAs, with their public files below `directory`; None: all trust the daemon's."""
    lifetime = timedelta(seconds=settings.session_max_age)  # no session outlives its CA
    return SessionCas(directory, lifetime) if settings.session_ca else None
