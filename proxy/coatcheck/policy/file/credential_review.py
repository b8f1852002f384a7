"""Checks of credentials: one at a time, and of those that nobody could tell apart in a request."""

from collections.abc import Iterator, Mapping
from itertools import combinations

from coatcheck.policy.file.codes import Code
from coatcheck.policy.file.models import CredentialSpec, InjectSpec, RuleSpec
from coatcheck.policy.file.overlap import any_paths_overlap, hosts_overlap
from coatcheck.policy.file.problem import Finding, Level, Location
from coatcheck.policy.file.public_suffix import public_suffix

WAYS = ("header", "basic", "query", "path", "body", "sigv4")
ONLY_ALONE = frozenset({"path", "body", "sigv4"})
"""A handle there is found in other ways than by looking at one value of the head."""


def review_credential(place: Location, spec: CredentialSpec) -> Iterator[Finding]:
    """What is wrong with one credential on its own."""
    inject = spec.inject
    ways = _ways(inject)
    yield from _review_place((*place, "inject"), inject)
    for index, other in enumerate(spec.also):
        yield from _review_place((*place, "also", index), other)
        named = {*_ways(other), *ways}
        if named & ONLY_ALONE:
            message = f"{' and '.join(sorted(named & ONLY_ALONE))} cannot be combined with another place"
            yield Finding((*place, "also", index), message, "write header, basic or query")
        if spec.handle == "optional":
            message = "without a handle nothing shows which place is meant"
            yield Finding((*place, "also", index), message, "remove `handle: optional`, or remove also")
        if other in (
            inject,
            *spec.also[:index],
        ):
            yield Finding((*place, "also", index), "this place is declared already", "remove it")
    if spec.handle == "optional" and ways and ways[0] in {"path", "body", "sigv4"}:
        message = f"without a handle nothing shows where in the {ways[0]} the secret belongs"
        yield Finding((*place, "handle"), message, "remove `handle: optional`")
    if spec.handle == "optional" and (spec.env or spec.shape):
        message = "the handle is optional, but clients may still check that the value looks like a key"
        if not spec.env:
            yield Finding(
                (*place, "shape"), message, "add env, or remove shape", Level.WARNING, Code.NEEDLESS
            )
    for index, host in enumerate(spec.hosts):
        # A SigV4 secret signs and stays; every other one would be sent to whoever owns the name.
        if host.wildcard and inject.sigv4 is None and public_suffix(host.suffix):
            message = f"{host}: every customer of that service could receive this secret"
            yield Finding((*place, "hosts", index), message, "write the exact hosts")


def _ways(inject: InjectSpec) -> list[str]:
    return [way for way in WAYS if getattr(inject, way) is not None]


def _review_place(where: Location, inject: InjectSpec) -> Iterator[Finding]:
    ways = _ways(inject)
    if len(ways) != 1:
        said = " and ".join(ways) if ways else "nothing"
        yield Finding(
            where,
            f"{where[2]} says {said}; a secret is put into one place",
            'write one, such as `{header: Authorization, value: "Bearer {secret}"}`',
        )
    elif inject.value is not None and ways != ["header"]:
        yield Finding(
            (*where, "value"), "value describes a header, and there is none", "add header, or remove value"
        )


def ambiguous_credentials(
    place: Location, rule: RuleSpec, credentials: Mapping[str, CredentialSpec]
) -> Iterator[Finding]:
    """Pairs on one rule of which a request, or its handle, could not say which one is meant."""
    for (_, one), (index, other) in combinations(enumerate(dict.fromkeys(rule.credentials)), 2):
        first, second = credentials.get(one), credentials.get(other)
        if first is None or second is None or not _meet(rule, first, second):
            continue
        where: Location = (*place, "credentials", index)
        optional = [name for name, spec in ((one, first), (other, second)) if spec.handle == "optional"]
        if len(optional) == 2:
            yield Finding(
                where,
                f"no handle selects between {one} and {other}",
                "make one of them `handle: required`, or give them different hosts, methods or paths",
            )
        elif optional and _spot(first.inject) == _spot(second.inject):
            shy, shadowed = (one, other) if optional == [one] else (other, one)
            message = f"{shy} needs no handle and would take the place of {shadowed}"
            yield Finding(where, message, f"make {shy} `handle: required`")


def _meet(rule: RuleSpec, one: CredentialSpec, other: CredentialSpec) -> bool:
    """Some request that the rule allows could carry either."""
    hosts = any(
        hosts_overlap(a, b) and any(hosts_overlap(a, c) and hosts_overlap(b, c) for c in rule.hosts)
        for a in one.hosts
        for b in other.hosts
    )
    methods = set(one.methods or rule.methods) & set(other.methods or rule.methods)
    return hosts and bool(methods) and any_paths_overlap(one.paths, other.paths)


def _spot(inject: InjectSpec) -> tuple[str, str]:
    """Where in a request the secret lands; Basic and SigV4 write Authorization too."""
    if inject.header is not None or inject.basic is not None or inject.sigv4 is not None:
        return ("header", inject.header or "authorization")
    if inject.query is not None:
        return ("query", inject.query)
    if inject.body is not None:
        return ("body", inject.body.field)
    return ("path", inject.path.prefix if inject.path else "")
