"""What an operator would change so that one refused request is allowed: a line, and nothing wider."""

import re
from typing import Final

from coatcheck.decision.denial import Reason
from coatcheck.decision.host import HostRefused, split_authority
from coatcheck.decision.policy import Policy
from coatcheck.injectors.spelling import Wrong
from coatcheck.policy.file.fields import host_pattern, method, path_pattern
from coatcheck.policy.learn import LACK_OF_A_RULE
from coatcheck.telemetry.redaction import printable

_ADDRESS: Final = re.compile(r" resolves to (\S+): ")
"""As `planes.upstream.upstream` says it in the audit log."""


def remedy(
    policy: Policy | None, reason: Reason, asked: str, destination: str, path: str, detail: str
) -> str:
    """A rule in YAML, or a setting; empty where neither would help, or cannot say it.

    `asked` is the method, `destination` is `https://host[:port]`.
    """
    if reason in LACK_OF_A_RULE:
        return _rule(policy, asked, destination, path)
    if reason is Reason.ADDRESS_REFUSED and (found := _ADDRESS.search(detail)) is not None:
        return f"COATCHECK_ALLOWED_NETWORKS='[\"{found[1]}\"]' in the daemon's settings; no policy can"
    return ""


def _rule(policy: Policy | None, asked: str, destination: str, path: str) -> str:
    """A refused CONNECT has shown no request, so its rule allows reading only."""
    scheme, _, authority = destination.partition("://")
    if scheme != "https":
        return ""
    tunnel = asked == "CONNECT"
    try:
        host, port = split_authority(authority, 443)
        host_pattern(host)
        if not tunnel:
            method(asked)
            path_pattern(path)
    except (Wrong, HostRefused, ValueError):
        return ""
    if "*" in path:  # a rule would read it as a wildcard
        return ""
    parts = [f"name: {_quoted(f'{host} {path}'[:60].strip() if not tunnel else host)}", f"hosts: [{host}]"]
    if port != 443:
        parts.append(f"ports: [{port}]")
    parts.append("methods: [GET, HEAD]" if tunnel else f"methods: [{asked}]")
    if not tunnel:
        parts.append(f"paths: [{_quoted(path)}]")
    fitting = [
        name
        for name, each in (policy.credentials if policy is not None else {}).items()
        if any(pattern.matches(host) for pattern in each.hosts)
    ]
    if fitting:
        parts.append(f"credentials: [{', '.join(fitting)}]")
    return f"- {{{', '.join(parts)}}}"


def _quoted(text: str) -> str:
    """One YAML scalar: a sandbox chose it."""
    escaped = printable(text).replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'
