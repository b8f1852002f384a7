"""A small OpenID provider that keeps the rules, over TLS; and breaks one when a test says so."""

import base64
import hashlib
import json
import secrets
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, unquote_plus, urlencode, urlsplit

import jwt
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from jwt.algorithms import ECAlgorithm, RSAAlgorithm

from tests.upstreams import UpstreamTls

CLIENT = "coatcheck page"

type Key = rsa.RSAPrivateKey | ec.EllipticCurvePrivateKey
type Break = Callable[[BaseHTTPRequestHandler], bool]
"""Answers instead of the provider; False: no, let it."""


class Provider:
    """Logs everybody in as `person` without asking."""

    def __init__(self) -> None:
        self.issuer = ""
        self.keys: dict[str, Key] = {"first": ec.generate_private_key(ec.SECP256R1())}
        self.signing = "first"
        self.person: dict[str, Any] = {"sub": "u-1", "email": "ada@example.com", "email_verified": True}
        self.changed: dict[str, Any] = {}
        """Claims that are otherwise than they should be; None: that are missing."""
        self.forge: Callable[[dict[str, Any]], str] | None = None
        self.document: dict[str, Any] = {}
        """More, or otherwise, in the discovery document."""
        self.secret: str | None = None
        self.says_no = False
        self.breaks: dict[str, Break] = {}
        self.asked: list[str] = []
        """Method and path of every request."""
        self.redirect_uris: set[str] = set()
        """What is registered; empty: nothing is checked."""
        self.codes: dict[str, dict[str, str]] = {}

    def token(self, nonce: str = "", **changed: Any) -> str:
        """An ID token about `person`."""
        now = int(time.time())
        claims = {
            "iss": self.issuer,
            "aud": CLIENT,
            "iat": now,
            "exp": now + 300,
            "nonce": nonce,
            **self.person,
            **self.changed,
            **changed,
        }
        claims = {name: value for name, value in claims.items() if value is not None}
        return self.forge(claims) if self.forge is not None else self.sign(claims)

    def sign(self, claims: dict[str, Any]) -> str:
        key = self.keys[self.signing]
        algorithm = "RS256" if isinstance(key, rsa.RSAPrivateKey) else "ES256"
        return jwt.encode(claims, key, algorithm, headers={"kid": self.signing})

    def jwks(self) -> dict[str, Any]:
        keys = []
        for kid, key in self.keys.items():
            public = key.public_key()
            made = (
                RSAAlgorithm.to_jwk(public, as_dict=True)
                if isinstance(public, rsa.RSAPublicKey)
                else ECAlgorithm(ECAlgorithm.SHA256).to_jwk(public, as_dict=True)
            )
            keys.append(made | {"kid": kid, "use": "sig"})
        return {"keys": keys}

    # --- what browsers and clients ask for --------------------------------------------------------------

    def discovery(self) -> dict[str, Any]:
        return {
            "issuer": self.issuer,
            "authorization_endpoint": f"{self.issuer}/authorize",
            "token_endpoint": f"{self.issuer}/token",
            "jwks_uri": f"{self.issuer}/keys",
            "scopes_supported": ["openid", "email", "groups", "phone"],
        } | self.document

    def authorize(self, query: str) -> str:
        """Where the browser goes next."""
        asked = {name: values[0] for name, values in parse_qs(query, strict_parsing=True).items()}
        assert asked["client_id"] == CLIENT and asked["response_type"] == "code"
        assert asked["code_challenge_method"] == "S256" and len(asked["nonce"]) >= 40
        assert not self.redirect_uris or asked["redirect_uri"] in self.redirect_uris
        said = {"state": asked["state"], "iss": self.issuer}
        if self.says_no:
            return f"{asked['redirect_uri']}?{urlencode(said | {'error': 'access_denied'})}"
        code = secrets.token_urlsafe(16)
        self.codes[code] = asked
        return f"{asked['redirect_uri']}?{urlencode(said | {'code': code})}"

    def exchange(self, form: dict[str, str], authorization: str | None) -> tuple[int, dict[str, Any]]:
        client, secret = form.get("client_id"), form.get("client_secret")
        if authorization is not None:
            pair = base64.b64decode(authorization.removeprefix("Basic ")).decode()
            client, secret = (unquote_plus(part) for part in pair.split(":", 1))
        if client != CLIENT or secret != self.secret:
            return 401, {"error": "invalid_client"}
        begun = self.codes.pop(form["code"], None)
        digest = hashlib.sha256(form["code_verifier"].encode()).digest()
        challenge = base64.urlsafe_b64encode(digest).rstrip(b"=").decode()
        if (
            begun is None
            or form["redirect_uri"] != begun["redirect_uri"]
            or challenge != begun["code_challenge"]
        ):
            return 400, {"error": "invalid_grant"}
        return 200, {"access_token": "none of ours", "id_token": self.token(begun["nonce"])}


class _Handler(BaseHTTPRequestHandler):
    provider: Provider
    timeout = 60

    def do_GET(self) -> None:
        path, query = urlsplit(self.path).path, urlsplit(self.path).query
        if self._broken(path):
            return
        if path == "/.well-known/openid-configuration":
            self.say(200, self.provider.discovery())
        elif path == "/keys":
            self.say(200, self.provider.jwks())
        elif path == "/authorize":
            self.say(302, {}, self.provider.authorize(query))
        else:  # an icon, for a browser that looks at us
            self.say(200, {})

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"])).decode()
        if not self._broken(self.path):
            form = {name: values[0] for name, values in parse_qs(body, strict_parsing=True).items()}
            self.say(*self.provider.exchange(form, self.headers["Authorization"]))

    def _broken(self, path: str) -> bool:
        self.provider.asked.append(f"{self.command} {path}")
        instead = self.provider.breaks.get(path)
        return instead is not None and instead(self)

    def say(self, status: int, body: dict[str, Any], location: str = "") -> None:
        content = json.dumps(body).encode()
        self.send_response(status)
        if location:
            self.send_header("Location", location)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_: Any) -> None:
        pass


@contextmanager
def serving(tls: UpstreamTls) -> Iterator[Provider]:
    """A provider at `https://localhost:PORT`."""
    provider = Provider()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tls.certificate, tls.key)
    handler = type("Handler", (_Handler,), {"provider": provider})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler, bind_and_activate=True)
    # The handshake is the handler's: a client that never ends it must not hold up the next one.
    server.socket = context.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
    server.daemon_threads = True
    server.handle_error = lambda request, client_address: None  # type: ignore[method-assign]
    provider.issuer = f"https://localhost:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield provider
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
