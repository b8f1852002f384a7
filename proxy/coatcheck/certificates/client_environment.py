"""What each client must be told, as environment variables: whom to trust, and which proxy to use."""

import ipaddress
import json
import re
import shlex
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from urllib.parse import urlsplit

from coatcheck.certificates.authority import CertificateError
from coatcheck.certificates.client_files import APT, NODE, PHP, WGETRC
from coatcheck.certificates.trust import JAVA_TRUSTSTORE_PASSWORD, TrustFiles

JAVA_OPTIONS = "JAVA_TOOL_OPTIONS"
"""Trust and proxy both need it; `environment` joins them. Every JVM announces it on standard error."""
NODE_OPTIONS = "NODE_OPTIONS"
_GIT_COUNT, _GIT_KEY, _GIT_VALUE = "GIT_CONFIG_COUNT", "GIT_CONFIG_KEY_", "GIT_CONFIG_VALUE_"


@dataclass(frozen=True, slots=True)
class Variable:
    """One variable of a sandbox's environment and why it is there."""

    name: str
    value: str
    reason: str


class Style(StrEnum):
    """How `render` writes variables."""

    SH = "sh"
    FISH = "fish"
    JSON = "json"
    DOTENV = "dotenv"


def trust_variables(files: TrustFiles) -> tuple[Variable, ...]:
    """The variables that make clients trust `files`; what they inherited of the same name is replaced."""
    bundle, ca = str(files.bundle), str(files.ca)
    store = _java_word(f"-Djavax.net.ssl.trustStore={files.java_truststore}")
    java = (
        f"{store} -Djavax.net.ssl.trustStoreType=PKCS12 "
        f"-Djavax.net.ssl.trustStorePassword={JAVA_TRUSTSTORE_PASSWORD}"
    )
    return (
        Variable("SSL_CERT_FILE", bundle, "OpenSSL, so Python's ssl and httpx, Ruby; Go; Rust; uv"),
        Variable("CURL_CA_BUNDLE", bundle, "curl, whatever TLS library it was built with"),
        Variable(
            "REQUESTS_CA_BUNDLE",
            bundle,
            "Python requests, which brings its own roots; boto3, the AWS command",
        ),
        Variable("GIT_SSL_CAINFO", bundle, "git: Debian's is built with GnuTLS and ignores SSL_CERT_FILE"),
        Variable("PIP_CERT", bundle, "pip"),
        Variable("CARGO_HTTP_CAINFO", bundle, "cargo: its built-in curl ignores the other variables"),
        Variable("UV_SYSTEM_CERTS", "true", "uv: the bundle above, not the roots compiled into it"),
        Variable("PERL_LWP_SSL_CA_FILE", bundle, "Perl's LWP, which brings its own roots"),
        Variable("HTTPLIB2_CA_CERTS", bundle, "httplib2, so Google's older Python clients"),
        Variable("npm_config_cafile", bundle, "npm and pnpm, where a file of the user's names another"),
        Variable("GRPC_DEFAULT_SSL_ROOTS_FILE_PATH", bundle, "gRPC's C core, under Python and Ruby"),
        Variable("NODE_EXTRA_CA_CERTS", ca, "Node, npm, Bun: added to their own roots, so the CA alone"),
        Variable("DENO_CERT", ca, "Deno: added to its own roots"),
        Variable(JAVA_OPTIONS, java, "Java, which reads no PEM file and no proxy variable"),
    )


def file_variables(files: TrustFiles) -> tuple[Variable, ...]:
    """The variables that name `client_files`, which must be there: Node does not start without its own."""
    place = files.bundle.parent
    program = str(place / NODE).replace("\\", "\\\\").replace('"', '\\"')
    return (
        Variable("WGETRC", str(place / WGETRC), "wget: Debian's is built with GnuTLS and heeds no variable"),
        Variable("PHP_INI_SCAN_DIR", f":{place / PHP}", "PHP's curl: read after the settings that it has"),
        Variable("APT_CONFIG", str(place / APT), "apt: read beside the settings that it has"),
        Variable(
            NODE_OPTIONS, f'--require "{program}"', "Node before 22.21, and clients with agents of their own"
        ),
    )


def git_variables(logins: Mapping[str, tuple[str, str]]) -> tuple[Variable, ...]:
    """A credential helper for each host: git asks for a password when it is challenged, and gets the handle.

    `logins`: host -> (user name, variable with the handle). Helpers that the user has for the host are not
    asked: they would give a real credential away.
    """
    settings: list[tuple[str, str]] = []
    for host, (user, variable) in logins.items():
        if not re.fullmatch(r"[A-Za-z0-9._@+-]+", user):
            continue
        key = f"credential.https://{host}.helper"
        say = f'printf "username=%s\\npassword=%s\\n" {user} "${variable}"'
        settings += [(key, ""), (key, f'!f() {{ test "$1" = get && {say}; }}; f')]
    reason = "git: the handle is the password that it is asked for"
    found = [
        Variable(f"{start}{number}", text, reason)
        for number, setting in enumerate(settings)
        for start, text in zip((_GIT_KEY, _GIT_VALUE), setting, strict=True)
    ]
    return (Variable(_GIT_COUNT, str(len(settings)), reason), *found) if settings else ()


def joined_with(inherited: Mapping[str, str], given: Mapping[str, str]) -> dict[str, str]:
    """`inherited` and what is given over it. Options of Node and git stand beside the user's, ours last."""
    merged = {**inherited, **given}
    if NODE_OPTIONS in inherited and NODE_OPTIONS in given:
        merged[NODE_OPTIONS] = f"{inherited[NODE_OPTIONS]} {given[NODE_OPTIONS]}"
    before = inherited.get(_GIT_COUNT, "0")
    if _GIT_COUNT in given and before.isascii() and before.isdigit() and len(before) < 6:
        first, count = int(before), int(given[_GIT_COUNT])
        for number in range(first):
            for start in (_GIT_KEY, _GIT_VALUE):
                if f"{start}{number}" in inherited:
                    merged[f"{start}{number}"] = inherited[f"{start}{number}"]
        for number in range(count):
            for start in (_GIT_KEY, _GIT_VALUE):
                merged[f"{start}{first + number}"] = given[f"{start}{number}"]
        merged[_GIT_COUNT] = str(first + count)
    return merged


def proxy_variables(url: str, no_proxy: Iterable[str] = ()) -> tuple[Variable, ...]:
    """The variables that send clients through the proxy at `url`, `http://host:port`.

    `no_proxy` is set even when it is empty: an exclusion inherited from the host would send traffic
    past the proxy, where in a sandbox it fails, and outside one it leaks. Raises CertificateError for
    another kind of URL.
    """
    host, port = _proxy_address(url)
    direct = tuple(no_proxy)
    if any(not re.fullmatch(r"[A-Za-z0-9._:\-]+", name) for name in direct):
        raise CertificateError("a NO_PROXY entry must be a plain host", "give names, without * and commas")
    excluded = ",".join(direct)
    # Java's own default excludes loopback; and its separator is a bar.
    java = " ".join(
        [
            *(f"-D{scheme}.proxyHost={host} -D{scheme}.proxyPort={port}" for scheme in ("http", "https")),
            _java_word(f"-Dhttp.nonProxyHosts={'|'.join(direct)}"),
        ]
    )
    reason = "most clients; some read only one of the two cases"
    return (
        Variable("HTTPS_PROXY", url, reason),
        Variable("https_proxy", url, reason),
        Variable(
            "HTTP_PROXY", url, "clients that ignore the lower-case one; curl ignores this one (httpoxy)"
        ),
        Variable("http_proxy", url, "curl and wget, and most clients"),
        Variable(
            "wss_proxy", url, "aiohttp's and Node packages' WebSockets, which heed neither all nor https"
        ),
        Variable("ws_proxy", url, "the same, without TLS"),
        Variable("ALL_PROXY", url, "WebSocket and other schemes; httpx, curl"),
        Variable("all_proxy", url, "WebSocket and other schemes; httpx, curl"),
        Variable("NO_PROXY", excluded, "nothing inherited may go past the proxy"),
        Variable("no_proxy", excluded, "nothing inherited may go past the proxy"),
        Variable("NODE_USE_ENV_PROXY", "1", "Node from 22.21 and 24: makes fetch and https read the above"),
        Variable(JAVA_OPTIONS, java, "Java, which reads no PEM file and no proxy variable"),
    )


def environment(*groups: Iterable[Variable]) -> dict[str, str]:
    """The variables of all groups as a mapping; those that several groups add to are joined."""
    return {variable.name: variable.value for variable in joined(*groups)}


def joined(*groups: Iterable[Variable]) -> tuple[Variable, ...]:
    """All variables once each, in order. Two different values of one name are a defect, except Java's."""
    merged: dict[str, Variable] = {}
    for variable in (variable for group in groups for variable in group):
        known = merged.get(variable.name)
        if known is None or known.value == variable.value:
            merged[variable.name] = variable
        elif variable.name == JAVA_OPTIONS:
            value = f"{known.value} {variable.value}"
            merged[variable.name] = Variable(variable.name, value, variable.reason)
        else:
            raise ValueError(f"two values for {variable.name}")
    return tuple(merged.values())


def trust_environment(files: TrustFiles) -> dict[str, str]:
    """`trust_variables` as a mapping."""
    return environment(trust_variables(files))


def render(variables: Iterable[Variable], style: Style) -> str:
    """`variables` as text to paste into a shell, or for a program to read (`json`: one flat object)."""
    chosen = tuple(variables)
    for variable in chosen:
        if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", variable.name) or not variable.value.isprintable():
            raise CertificateError(
                f"the value of {variable.name!r} cannot be written into a shell safely",
                "choose a directory whose path has printable characters only",
            )
    if style is Style.JSON:
        return json.dumps({variable.name: variable.value for variable in chosen}, indent=2) + "\n"
    lines: list[str] = []
    for variable in chosen:
        lines += [f"# {variable.reason}", _LINE[style](variable)]
    return "\n".join(lines) + "\n"


def _fish(variable: Variable) -> str:
    value = variable.value.replace("\\", "\\\\").replace("'", "\\'")
    return f"set -gx {variable.name} '{value}'"


def _dotenv(variable: Variable) -> str:
    # Single quotes, because readers expand $ within double ones; they know no escape for a quote.
    if "'" in variable.value:
        raise CertificateError(
            f"{variable.name} holds a quote, which a .env file cannot carry", "use another style, or path"
        )
    return f"{variable.name}='{variable.value}'"


_LINE = {
    Style.SH: lambda variable: f"export {variable.name}={shlex.quote(variable.value)}",
    Style.FISH: _fish,
    Style.DOTENV: _dotenv,
}


def _java_word(word: str) -> str:
    """`word` as the JVM splits JAVA_TOOL_OPTIONS: at white space, with either quote, no escapes."""
    if "'" in word and '"' in word:
        raise CertificateError("a path with both kinds of quotes cannot be given to Java", "choose another")
    quote = '"' if "'" in word else "'"
    return f"{quote}{word}{quote}" if re.search(r"[\s'\"|]", word) else word


def _proxy_address(url: str) -> tuple[str, int]:
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError:
        host, port, parts = None, None, urlsplit("")
    if (
        parts.scheme != "http"
        or not host
        or not port
        or set(url) & set("?#")
        or parts.path not in ("", "/")
        or not url.isprintable()
    ):
        raise CertificateError(
            "a proxy's address must look like http://127.0.0.1:8080",
            "give scheme, host and port; TLS to the proxy itself is not spoken by most clients",
        )
    if ":" in host:
        host = f"[{ipaddress.IPv6Address(host)}]"
    if not re.fullmatch(r"[A-Za-z0-9._:\[\]\-]+", host):
        raise CertificateError("a proxy's host must be a name or an address", "http://127.0.0.1:8080")
    return host, port
