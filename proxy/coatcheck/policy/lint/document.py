"""What a linter sees by reading one part of a file: owners, limits, wildcards, plain HTTP, needless lines."""

from collections.abc import Iterator, Sequence
from datetime import date, timedelta
from itertools import chain

from coatcheck.decision.policy import HostPattern, PathPattern
from coatcheck.policy.file.codes import Code
from coatcheck.policy.file.credential_review import lasting_signatures, sends_secret
from coatcheck.policy.file.models import CredentialSpec, Document, ObserveSpec, RuleSpec
from coatcheck.policy.file.overlap import host_covers, path_covers
from coatcheck.policy.file.problem import Finding, Level, Location
from coatcheck.policy.file.public_suffix import public_suffix_below

_NOBODY = {
    *("todo", "tbd", "fixme", "xxx", "none", "nobody", "no one", "noone", "unknown", "n/a", "na", "me"),
    *("changeme", "change-me", "owner", "the owner", "your-team", "my-team", "team name", "somebody"),
}
LONGEST_OBSERVING = timedelta(days=31)
"""What an agent does in a month of work is what a draft can be made of."""
LONGEST_YES = 3600.0
"""Seconds: the approver still knows what the answer was for."""
_UPLOADS = frozenset({"POST", "PUT", "PATCH"})


def lint_document(document: Document, today: date) -> Iterator[Finding]:
    """Every finding that one part of `document` shows. `today` is what long times are counted from."""
    if document.owner.strip("<>[]?! ").lower() in _NOBODY or not any(map(str.isalnum, document.owner)):
        message = f'"{document.owner}" is not a contact'
        yield _finding(("owner",), message, "write the team's name", Code.NO_OWNER)
    if document.observe is not None:
        yield from _observe(document.observe, today)
    for name, credential in document.credentials.items():
        yield from _credential(("credentials", name), credential)
    for index, rule in enumerate(document.rules):
        place: Location = ("rules", index)
        yield from chain(
            _wildcards(place, rule.hosts), _plain_http(place, rule, document), _limits(place, rule)
        )
        yield from chain(_ask(place, rule), _answers(place, rule))
        yield from chain(_needless_hosts(place, rule.hosts), _needless_paths(place, rule.paths))


def _observe(observe: ObserveSpec, today: date) -> Iterator[Finding]:
    message = f"until {observe.until}, what no rule allows passes on daemons that observe"
    yield _finding(("observe",), message, "remove it when the draft is reviewed", Code.OBSERVE)
    if observe.until - today > LONGEST_OBSERVING:
        message = f"it observes until {observe.until}: more than {LONGEST_OBSERVING.days} days"
        instead = f"write a day until {today + LONGEST_OBSERVING}"
        yield _finding(("observe", "until"), message, instead, Code.LONG_LIFETIME)


def _ask(place: Location, rule: RuleSpec) -> Iterator[Finding]:
    if rule.ask is not None and rule.websocket:
        message = f'"{rule.name}" asks about the handshake of a WebSocket, and about none of its messages'
        instead = "allow WebSockets in a rule of their own"
        yield _finding((*place, "websocket"), message, instead, Code.HANDSHAKE_ONLY)
    remember = rule.ask.remember if rule.ask is not None else None
    if remember is not None and remember > LONGEST_YES:
        message = f'a yes to "{rule.name}" lasts for more than an hour, whatever the agent does in that time'
        yield _finding((*place, "ask", "remember"), message, "write 1h or less", Code.LONG_LIFETIME)


def _answers(place: Location, rule: RuleSpec) -> Iterator[Finding]:
    if rule.scrub is not None:
        what = f"the secrets of {', '.join(rule.credentials)}" if rule.credentials else "a secret"
        message = f'"{rule.name}" passes answers unread: {what} may come back in them, whole or in ranges'
        yield _finding((*place, "scrub"), message, "remove scrub, or keep it to downloads", Code.UNSEARCHED)
    elif rule.compression:
        message = f'"{rule.name}" lets upstreams compress answers: how fast one comes tells what is in it'
        yield _finding((*place, "compression"), message, "remove compression", Code.COMPRESSION)


def _credential(place: Location, credential: CredentialSpec) -> Iterator[Finding]:
    if sends_secret(credential):
        yield from _wildcards(place, credential.hosts)
    for where in lasting_signatures(place, credential):
        yield _finding(
            where,
            "the message has no {timestamp}: a signature stays valid as long as the key, whatever is revoked",
            'add "{timestamp}" to message, and timestamp: {header: …}',
            Code.LASTING_SIGNATURE,
        )
    yield from chain(_needless_hosts(place, credential.hosts), _needless_paths(place, credential.paths))


def _wildcards(place: Location, hosts: Sequence[HostPattern]) -> Iterator[Finding]:
    """`review` says what stands for a service's suffix itself; here those that reach over one."""
    for index, host in enumerate(hosts):
        below = public_suffix_below(host.suffix) if host.wildcard else None
        if below is not None:
            yield _finding(
                (*place, "hosts", index),
                f"{host} also allows names below {below}, where strangers get their own",
                "write the exact hosts",
                Code.WILDCARD_PUBLIC_SUFFIX,
            )


def _plain_http(place: Location, rule: RuleSpec, document: Document) -> Iterator[Finding]:
    if not rule.plain_http:
        return
    open_ = [name for name in rule.credentials if document.credentials[name].plain_http]
    carried = f", with the secret of {', '.join(open_)}" if open_ else ""
    message = f'"{rule.name}" lets requests leave unencrypted{carried}'
    yield _finding((*place, "plain_http"), message, "use https, and remove plain_http", Code.PLAIN_HTTP)


def _limits(place: Location, rule: RuleSpec) -> Iterator[Finding]:
    """Bytes of a tunnel are limited already, or the file does not load."""
    if rule.credentials and not any(limits.requests or limits.concurrent for limits in rule.limits):
        names = ", ".join(rule.credentials)
        message = f'nothing but the default limits how often "{rule.name}" uses {names}'
        yield _finding(place, message, "add limits, such as `limits: {requests: 60/minute}`", Code.NO_LIMITS)
    elif (
        not rule.credentials
        and _UPLOADS & set(rule.methods)
        and not (rule.max_request or any(limits.bytes_up for limits in rule.limits))
    ):
        message = f'"{rule.name}" allows uploads of any size, to an account that is not yours'
        yield _finding(place, message, "add max_request, such as `max_request: 1MiB`", Code.NO_LIMITS)


def _needless_hosts(place: Location, hosts: Sequence[HostPattern]) -> Iterator[Finding]:
    for index, host in enumerate(hosts):
        others = [other for at, other in enumerate(hosts) if at < index or other != host and at != index]
        wide = next((other for other in others if host_covers(other, host)), None)
        if wide is not None:
            yield _finding(
                (*place, "hosts", index), f"{wide} covers {host} already", "remove it", Code.NEEDLESS
            )


def _needless_paths(place: Location, paths: Sequence[PathPattern]) -> Iterator[Finding]:
    for index, path in enumerate(paths):
        others = [other for at, other in enumerate(paths) if at < index or other != path and at != index]
        wide = next((other for other in others if path_covers(other, path)), None)
        if wide is not None:
            yield _finding(
                (*place, "paths", index), f"{wide} covers {path} already", "remove it", Code.NEEDLESS
            )


def _finding(where: Location, message: str, instead: str, code: Code) -> Finding:
    return Finding(where, message, instead, Level.WARNING, code)
