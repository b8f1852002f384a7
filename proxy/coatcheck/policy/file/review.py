"""What only shows when the parts of a file are seen together. Each check yields findings; none stops."""

from collections.abc import Iterator
from itertools import chain

from coatcheck.decision.message import OriginClass
from coatcheck.decision.policy import LimitScope
from coatcheck.injectors.spelling import closest
from coatcheck.policy.file.building import rule_ports
from coatcheck.policy.file.codes import Code
from coatcheck.policy.file.credential_review import ambiguous_credentials, review_credential
from coatcheck.policy.file.earlier_rules import EarlierRules
from coatcheck.policy.file.filesystem_review import review_filesystem
from coatcheck.policy.file.models import AskSpec, Document, RuleSpec
from coatcheck.policy.file.overlap import any_hosts_overlap, host_covers, hosts_overlap, path_covers
from coatcheck.policy.file.problem import Finding, Level, Location
from coatcheck.policy.file.public_suffix import public_suffix


def review(document: Document) -> Iterator[Finding]:
    """Every finding about `document`, errors and warnings."""
    if not document.rules and document.credentials:
        yield Finding(("credentials",), "credentials without rules: nothing may use them", "add rules")
    for name, credential in document.credentials.items():
        yield from review_credential(("credentials", name), credential)
    yield from _variables(document)
    yield from _usage(document)
    if document.filesystem is not None:
        yield from review_filesystem(document.filesystem)
    seen: dict[str, int] = {}
    earlier = EarlierRules()
    for index, rule in enumerate(document.rules):
        place: Location = ("rules", index)
        if rule.name in seen:
            yield Finding(
                (*place, "name"), f'two rules are named "{rule.name}"', "give each rule its own name"
            )
        seen.setdefault(rule.name, index)
        yield from chain(
            _rule(place, rule),
            _rule_credentials(place, rule, document),
            _shadow(place, rule, earlier, document.rules),
        )
        earlier.add(index, rule)
        yield from ambiguous_credentials(place, rule, document.credentials)


def _variables(document: Document) -> Iterator[Finding]:
    owners: dict[str, str] = {}
    for name, credential in document.credentials.items():
        if credential.env and credential.env in owners:
            message = f"{credential.env} is already the variable of {owners[credential.env]}"
            yield Finding(("credentials", name, "env"), message, "give each credential its own variable")
        elif credential.env:
            owners[credential.env] = name


def _usage(document: Document) -> Iterator[Finding]:
    for name, credential in document.credentials.items():
        users = [rule for rule in document.rules if name in rule.credentials]
        place: Location = ("credentials", name)
        if document.rules and not users:
            yield Finding(
                place,
                f'no rule uses the credential "{name}"',
                f"add `credentials: [{name}]` to a rule, or remove it",
            )
        for index, host in enumerate(credential.hosts):
            if users and not any(any_hosts_overlap([host], rule.hosts) for rule in users):
                message = f"no rule that uses {name} allows {host}"
                yield Finding(
                    (*place, "hosts", index),
                    message,
                    "remove the host, or allow it",
                    Level.WARNING,
                    Code.CREDENTIAL_IN_VAIN,
                )
        if credential.plain_http and users and not any(rule.plain_http for rule in users):
            message = f"no rule that uses {name} allows plain HTTP"
            yield Finding((*place, "plain_http"), message, "remove plain_http", Level.WARNING, Code.NEEDLESS)


def _rule(place: Location, rule: RuleSpec) -> Iterator[Finding]:
    if rule.tunnel:
        yield from _tunnel(place, rule)
    elif not rule.methods:
        yield Finding(
            place, f'the rule "{rule.name}" allows no method', "add methods, such as `methods: [GET, HEAD]`"
        )
    for index, host in enumerate(rule.hosts):
        if host.wildcard and public_suffix(host.suffix):
            message = f"{host} allows names of every customer of that service"
            yield Finding(
                (*place, "hosts", index),
                message,
                "write the exact hosts if you can",
                Level.WARNING,
                Code.WILDCARD_PUBLIC_SUFFIX,
            )
    if rule.websocket and rule.http2:
        yield Finding(
            (*place, "http2"),
            "WebSocket is carried over HTTP/1.1 only",
            "use two rules, or remove one of them",
        )
    if rule.websocket and not rule.tunnel and "GET" not in rule.methods:
        yield Finding(
            (*place, "websocket"),
            "a WebSocket begins with GET, which this rule does not allow",
            "add GET to methods",
        )
    if rule.ask is not None:
        yield from _ask((*place, "ask"), rule.ask)
    if rule.plain_http and rule.ports == [443]:
        yield Finding((*place, "ports"), "plain HTTP on port 443 only", "add 80 to ports, or remove ports")
    for index, limits in enumerate(rule.limits):
        where: Location = (*place, "limits", index)
        if not (limits.requests or limits.concurrent or limits.bytes_up or limits.bytes_down):
            yield Finding(
                where, "nothing is limited here", "add requests, concurrent, bytes_up or bytes_down"
            )
        elif limits.per is LimitScope.CREDENTIAL and not rule.credentials:
            yield Finding(
                (*where, "per"),
                "a limit per credential limits nothing on a rule without credentials",
                "remove per, or write `per: session`, `per: tenant` or `per: rule`",
            )
        elif limits.burst and not limits.requests:
            yield Finding(
                (*where, "burst"), "burst belongs to requests", "add requests, such as `requests: 60/minute`"
            )


LONGEST_WAIT = 600.0
"""Seconds: a connection and a place are held as long, and clients' own patience is seldom greater."""
LONGEST_MEMORY = 43_200.0
"""Seconds: what somebody allowed today is asked again tomorrow."""


def _ask(place: Location, ask: AskSpec) -> Iterator[Finding]:
    if ask.wait is not None and ask.wait > LONGEST_WAIT:
        yield Finding((*place, "wait"), "no request is held longer than ten minutes", "write at most 10m")
    if ask.remember is not None and ask.remember > LONGEST_MEMORY:
        yield Finding(
            (*place, "remember"), "no answer counts for longer than half a day", "write at most 12h"
        )
    if ask.remember is None:
        for key in sorted({"same", "whose"} & ask.model_fields_set):
            what = f"{key} sets what is remembered, but nothing is remembered"
            yield Finding((*place, key), what, f"remove {key}, or add remember, such as `remember: 15m`")


def _tunnel(place: Location, rule: RuleSpec) -> Iterator[Finding]:
    why = "TLS in a tunnel stays closed, so nothing in it can be seen or changed"
    for index, host in enumerate(rule.hosts):
        if host.wildcard:
            yield Finding((*place, "hosts", index), "a tunnel needs exact hosts", "write each host")
    given = rule.model_fields_set
    for key in (
        "credentials", "methods", "paths", "plain_http", "websocket", "http2", "handles_in_body", "ask",
        "scrub", "compression",
    ):  # fmt: skip
        if key in given:
            yield Finding((*place, key), f"{key} has no meaning on a tunnel: {why}", f"remove {key}")
    up = rule.max_request or any(limits.bytes_up for limits in rule.limits)
    if not up:
        yield Finding(
            place, "a tunnel's bytes must be limited", "add max_request, such as `max_request: 10MiB`"
        )
    yield Finding(
        (*place, "tunnel"),
        "nothing in this tunnel is inspected: methods, paths and leaks pass unseen",
        "make the client trust our CA, and remove tunnel",
        Level.WARNING,
        Code.TUNNEL,
    )


def _rule_credentials(place: Location, rule: RuleSpec, document: Document) -> Iterator[Finding]:
    seen: set[str] = set()
    for index, name in enumerate(rule.credentials):
        where: Location = (*place, "credentials", index)
        credential = document.credentials.get(name)
        if credential is None:
            yield Finding(
                where, f'there is no credential "{name}"', closest(name, list(document.credentials))
            )
        elif name in seen:
            yield Finding(where, f"{name} is listed twice", "remove one of them")
        elif not any_hosts_overlap(rule.hosts, credential.hosts):
            hosts = ", ".join(map(str, credential.hosts))
            yield Finding(
                where,
                f"{name} may only go to {hosts}, and this rule allows none of them",
                "add the host to the rule, or the rule's host to the credential",
            )
        elif credential.methods and not set(credential.methods) & set(rule.methods):
            yield Finding(
                where,
                f"{name} and this rule have no method in common",
                "widen one of them, or remove the credential",
            )
        if credential is not None and OriginClass.BEARER in credential.origins and name not in seen:
            message = f"{name} accepts bearer, which does not stop a stolen handle"
            where = ("credentials", name, "origins")
            yield Finding(where, message, "remove bearer", Level.WARNING, Code.BEARER_ORIGIN)
        seen.add(name)


def _shadow(place: Location, rule: RuleSpec, above: EarlierRules, rules: list[RuleSpec]) -> Iterator[Finding]:
    for earlier in (rules[number] for number in above.other_kind(rule)):
        both = [host for host in rule.hosts if any(hosts_overlap(host, other) for other in earlier.hosts)]
        if both and set(rule_ports(rule)) & set(rule_ports(earlier)):
            message = f'{both[0]} is tunnelled by one rule and inspected by another ("{earlier.name}")'
            yield Finding(
                (*place, "hosts", rule.hosts.index(both[0])),
                message,
                "a host is either opened or not: remove it from one",
            )
    for earlier in (rules[number] for number in above.may_cover(rule)):
        if earlier.tunnel == rule.tunnel and _covers(earlier, rule):
            message = f'"{rule.name}" is never reached: "{earlier.name}" allows all of it first'
            yield Finding(
                (*place, "name"), message, "move it up, or remove it", Level.WARNING, Code.RULE_NEVER_REACHED
            )


def _covers(outer: RuleSpec, inner: RuleSpec) -> bool:
    return (
        all(any(host_covers(wide, host) for wide in outer.hosts) for host in inner.hosts)
        and set(inner.methods) <= set(outer.methods)
        and set(rule_ports(inner)) <= set(rule_ports(outer))
        and outer.plain_http >= inner.plain_http
        and outer.websocket >= inner.websocket
        and (
            not outer.paths
            or bool(inner.paths)
            and all(any(path_covers(wide, path) for wide in outer.paths) for path in inner.paths)
        )
    )
