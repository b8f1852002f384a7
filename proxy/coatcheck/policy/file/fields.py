"""One text of a policy file -> one value, or `Wrong`: what is the matter and what to write instead."""

import re
from datetime import date

from coatcheck.decision.host import HostRefused, canonical_host
from coatcheck.decision.observing import OBSERVED
from coatcheck.decision.path import ENCODED_SLASH, ambiguous, canonical_path, check_target
from coatcheck.decision.policy import HostPattern, PathPattern, SecretRef
from coatcheck.injectors.spelling import Wrong, closest
from coatcheck.policy.file.public_suffix import SuffixKind, public_suffix

METHODS = (
    *("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "QUERY"),
    *("PROPFIND", "PROPPATCH", "MKCOL", "COPY", "MOVE", "LOCK", "UNLOCK", "REPORT", "SEARCH"),
)
STORES = ("vault", "file", "memory")

_NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,62}")
_SECRET = re.compile(r"([a-z]+):([A-Za-z0-9_.@-]+)/([A-Za-z0-9_.@/ -]*[A-Za-z0-9_.@-])#([A-Za-z0-9_.@-]+)")
_ENV = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,127}")
_DATE = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")

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
    *("PERL_LWP_SSL_CA_FILE", "HTTPLIB2_CA_CERTS", "WGETRC", "PHP_INI_SCAN_DIR", "APT_CONFIG"),
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


def name(text: str) -> str:
    """A credential's name: it becomes part of handles, URLs and audit records."""
    if not _NAME.fullmatch(text):
        if _NAME.fullmatch(text.lower()):
            raise Wrong(f'"{text}" is not a name', f'write "{text.lower()}"')
        raise Wrong(
            f'"{text}" is not a name', "write 1 to 63 of a-z, 0-9, - and _, beginning with a letter or digit"
        )
    return text


def line_of_text(text: str) -> str:
    """A title or owner: one printable line of at most 120 characters."""
    if not text.strip() or text != text.strip() or len(text) > 120 or not text.isprintable():
        raise Wrong(
            "this is not one line of text", "write 1 to 120 printable characters without space around them"
        )
    return text


def rule_name(text: str) -> str:
    """As `line_of_text`; what we write into records ourselves is no name for a rule."""
    if text == OBSERVED:
        raise Wrong(f'"{OBSERVED}" is how records call what no rule allowed', "write another name")
    return line_of_text(text)


def host_pattern(text: str) -> HostPattern:
    """`api.example.org`, or `*.example.org` for every name below it."""
    wildcard = text.startswith("*.")
    host = text[2:] if wildcard else text
    if host == "*" or text == "*":
        raise Wrong("a star alone would allow every host", "write each host that is needed")
    if "*" in host:
        raise Wrong(
            f'"{text}": a star may only replace whole labels at the front', 'write "*.suffix" or exact hosts'
        )
    canonical = _canonical(host, "*." if wildcard else "")
    if wildcard:
        _check_wildcard(canonical)
    return HostPattern(canonical, wildcard)


def _canonical(host: str, star: str) -> str:
    try:
        canonical = canonical_host(host)
    except HostRefused as refused:
        within = "" if refused.instead else _host_in(host)
        meant = refused.instead or within
        message = "this is more than a host name" if within else str(refused)
        instead = f"write {star}{meant}" if meant else "write the plain host name"
        raise Wrong(f'"{star}{host}": {message}', instead) from None
    if canonical != host:
        raise Wrong(f'"{star}{host}" is not in canonical form', f"write {star}{canonical}")
    return canonical


def _host_in(text: str) -> str:
    """The host that stands in a URL or an authority, for a hint."""
    bare = text.partition("://")[2] or text
    bare = re.split(r"[/?#]", bare, maxsplit=1)[0].rpartition("@")[2]
    try:
        return canonical_host(re.sub(r":\d+$", "", bare))
    except HostRefused:
        return ""


def _check_wildcard(suffix: str) -> None:
    if suffix.rpartition(".")[2].isdigit() or ":" in suffix:
        raise Wrong(f'"*.{suffix}": addresses have no names below them', "write each address")
    if "." not in suffix:
        raise Wrong(f'"*.{suffix}" would allow a whole top-level domain', f'write "*.example.{suffix}"')
    if public_suffix(suffix) is SuffixKind.REGISTRY:
        raise Wrong(f'"*.{suffix}" would allow names that anyone can register', f'write "*.example.{suffix}"')


def path_pattern(text: str) -> PathPattern:
    """An exact path, `*` for one whole segment, or `/**` at the end for everything below."""
    if not text.startswith("/"):
        raise Wrong(f'"{text}" does not begin with a slash', f'write "/{text}"')
    if "?" in text:
        raise Wrong("queries are not matched", f'write "{text.partition("?")[0]}"')
    refused = check_target(text, slashes=True)
    if refused is not None or ambiguous(text):
        raise Wrong(
            f'"{text}": {refused.detail if refused else "empty segments and ; never match"}',
            "write the plain path",
        )
    if canonical_path(text) != text:
        raise Wrong(f'"{text}" is not in canonical form', f'write "{canonical_path(text)}"')
    segments = text[1:].split("/")
    prefix = segments[-1] == "**"
    if prefix:
        segments.pop()
    for segment in segments:
        if any("*" in part and part != "*" for part in segment.split(ENCODED_SLASH)):
            whole = text.partition(segment)[0]
            raise Wrong(
                f'"{segment}": a star replaces one whole segment',
                f'write "{whole}*" or "{whole}**" at the end',
            )
    return PathPattern(tuple(segments), prefix)


def sandbox_path(text: str) -> str:
    """A place in a sandbox's file system: absolute, canonical, itself and not a pattern."""
    if text.startswith("~"):
        raise Wrong(
            f'"{text}": its meaning depends on the user who runs the command',
            f'write "/home/agent{text[1:]}"',
        )
    if not text.startswith("/"):
        raise Wrong(f'"{text}" does not begin with a slash', f'write "/{text}"')
    if any(character in text for character in "*?[]{}$"):
        raise Wrong(f'"{text}" looks like a pattern, and paths here are literal', "write each place")
    if not text.isprintable() or len(text) > 1024:
        raise Wrong("this is not a path of 1 to 1024 printable characters", "write the plain path")
    canonical = "/" + "/".join(part for part in text.split("/") if part not in {"", "."})
    if ".." in canonical.split("/"):
        raise Wrong(f'"{text}" goes back up', "write where it leads")
    if canonical != text:
        raise Wrong(f'"{text}" is not in canonical form', f'write "{canonical}"')
    return text


def method(text: str) -> str:
    """An HTTP method, in the upper case that HTTP compares."""
    if text in {"TRACE", "CONNECT"}:
        why = (
            "sends the request, credentials included, back"
            if text == "TRACE"
            else "opens an uninspected tunnel"
        )
        raise Wrong(f"{text} {why}", "leave it out")
    if text == "*":
        raise Wrong(
            "a star would allow every method", "list the methods that are needed, such as [GET, HEAD]"
        )
    if text not in METHODS:
        raise Wrong(f'"{text}" is not a method that can be allowed', closest(text, METHODS))
    return text


def secret_ref(text: str) -> SecretRef:
    """`store:mount/path#field`."""
    found = _SECRET.fullmatch(text)
    if not found or any(part in {"", ".", ".."} for part in found[3].split("/")):
        raise Wrong(
            "this does not name a secret", "write store:mount/path#field, such as vault:secret/openai#api_key"
        )
    store, mount, path, field = found.groups()
    if store not in STORES:
        raise Wrong(f'there is no secret store "{store}"', closest(store, STORES))
    if store == "vault" and path.startswith("data/"):
        fixed = path.removeprefix("data/")
        raise Wrong("KV version 2 adds data/ itself", f"write {store}:{mount}/{fixed}#{field}")
    return SecretRef(store, mount, path, field)


def calendar_date(text: str) -> date:
    """`2027-03-31`."""
    try:
        if not _DATE.fullmatch(text):
            raise ValueError
        return date.fromisoformat(text)
    except ValueError:
        raise Wrong(f'"{text}" is not a date', "write year-month-day, such as 2027-03-31") from None


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
