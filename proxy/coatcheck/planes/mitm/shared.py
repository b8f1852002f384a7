"""What all client connections of one plane share."""

from mitmproxy import options

from coatcheck.planes.mitm.hooks import Hooks
from coatcheck.planes.mitm.session_ca import SigningCa
from coatcheck.planes.mitm.tls import UpstreamTls
from coatcheck.planes.mitm.turns import Turns
from coatcheck.planes.origins.platform_token import PlatformTokens
from coatcheck.planes.upstream.upstream import Upstream
from coatcheck.request.exchange import Exchange


class Shared:
    """Belongs to the plane's event loop."""

    def __init__(
        self,
        exchange: Exchange,
        upstream: Upstream,
        signing_ca: SigningCa,
        upstream_tls: UpstreamTls,
        tokens: PlatformTokens | None,
        *,
        refuse_inside_tls: bool,
    ) -> None:
        self.exchange = exchange
        self.upstream = upstream
        self.signing_ca = signing_ca
        self.upstream_tls = upstream_tls
        self.tokens = tokens
        self.refuse_inside_tls = refuse_inside_tls
        """Whether a CONNECT to a host that no rule allows is answered in the tunnel."""
        self.options = options.Options()
        self.hooks: Hooks = {}
        """mitmproxy's hooks that the plane answers."""
        self.turns = Turns()
        self.failures = 0
        """Connections or requests refused because of a failure of our own."""

    def failed_closed(self) -> None:
        self.failures += 1
