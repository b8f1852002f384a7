"""Which headers and environment variables a policy may write, and how a header's template looks."""

import re

from coatcheck.policy.file.problem import Wrong

SECRET = "{secret}"

_TOKEN = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]{1,128}")
_ENV = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,127}")

_FRAMING = ("content-length", "transfer-encoding", "content-encoding", "content-type")
_HOP_BY_HOP = ("connection", "keep-alive", "te", "trailer", "upgrade", "expect", "http2-settings")
_NEVER = {
    "host": "it decides where the request goes",
    "cookie": "it holds many values of many owners, and a template describes a whole header",
    "set-cookie": "it belongs to responses",
    "forwarded": "servers trust it for addresses",
    "via": "servers trust it for addresses",
    "range": "a partial answer could hide an echo of the secret",
    "if-range": "a partial answer could hide an echo of the secret",
    **dict.fromkeys(_FRAMING, "it frames the body"),
    **dict.fromkeys(_HOP_BY_HOP, "it belongs to the connection"),
}
_NEVER_PREFIXES = {
    "proxy-": "it is for proxies, not for the upstream",
    "x-forwarded-": "servers trust it for addresses",
    "coatcheck-": "it is ours",
    "sec-": "browsers own it",
}

_SHELL = {
    *("PATH", "HOME", "SHELL", "USER", "LOGNAME", "PWD", "IFS", "ENV", "BASH_ENV", "PS4", "TERM", "TMPDIR"),
    *("LANG", "EDITOR", "VISUAL", "PAGER", "BROWSER", "HOSTNAME"),
}
_RUNTIMES = {
    *("NODE_OPTIONS", "NODE_PATH", "NODE_EXTRA_CA_CERTS", "RUBYOPT", "RUBYLIB", "PERL5OPT", "PERL5LIB"),
    *("PERL5DB", "CLASSPATH", "JAVA_TOOL_OPTIONS", "JDK_JAVA_OPTIONS", "_JAVA_OPTIONS", "GOFLAGS", "GOPROXY"),
    *("RUSTFLAGS", "UV_NATIVE_TLS", "CARGO_HTTP_CAINFO", "PIP_CERT"),
}
_WAY_OUT = {
    *("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY", "FTP_PROXY", "REQUESTS_CA_BUNDLE"),
    *("CURL_CA_BUNDLE", "SSL_CERT_FILE", "SSL_CERT_DIR", "SSLKEYLOGFILE", "AWS_CA_BUNDLE"),
}
_ENV_NEVER = frozenset(_SHELL | _RUNTIMES | _WAY_OUT)
_ENV_NEVER_PREFIXES = (
    "LD_",
    "DYLD_",
    "GLIBC_",
    "MALLOC_",
    "PYTHON",
    "GIT_",
    "BASH_FUNC",
    "COATCHECK_",
    "OPENSSL_",
    "NPM_CONFIG_",
)


def header_name(text: str) -> str:
    """A header that a secret may be put into; lower-case, as the core compares them."""
    lower = text.lower()
    if not _TOKEN.fullmatch(text):
        raise Wrong(f'"{text}" is not a header name', "write a name such as Authorization or X-Api-Key")
    why = _NEVER.get(lower) or next(
        (why for start, why in _NEVER_PREFIXES.items() if lower.startswith(start)), None
    )
    if why:
        raise Wrong(
            f"{text} cannot carry a secret: {why}",
            "write the header that the API documents, such as Authorization",
        )
    return lower


def template(text: str) -> str:
    """A header's value in which `{secret}` stands for the secret, once."""
    if any(sign in text for sign in "\r\n\0"):
        raise Wrong(
            "a line break in a header's value would begin another header",
            f'write "Bearer {SECRET}" on one line',
        )
    if not (text.isascii() and text.isprintable()) or text != text.strip():
        raise Wrong(
            "a header's value is printable ASCII without space around it", f'write it like "Bearer {SECRET}"'
        )
    rest = text.replace(SECRET, "", 1)
    if SECRET not in text or "{" in rest or "}" in rest:
        raise Wrong(
            f"the value needs {SECRET} exactly once and no other braces", f'write it like "Bearer {SECRET}"'
        )
    return text


def env_name(text: str) -> str:
    """A variable that a sandbox may find its handle in; none that changes how its programs run."""
    if not _ENV.fullmatch(text):
        raise Wrong(
            f'"{text}" is not the name of an environment variable', "write a name such as OPENAI_API_KEY"
        )
    upper = text.upper()
    if upper in _ENV_NEVER or upper.startswith(_ENV_NEVER_PREFIXES):
        raise Wrong(
            f"{text} changes how programs run", "write the variable in which the client looks for its key"
        )
    return text
