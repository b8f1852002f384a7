"""Checks of credentials: one at a time, and of those that nobody could tell apart in a request."""

from collections.abc import Iterator, Mapping
from itertools import combinations

from coatcheck.decision.injection import Injector
from coatcheck.injectors import WAYS
from coatcheck.policy.file.codes import Code
from coatcheck.policy.file.models import CredentialSpec, InjectSpec, RuleSpec
from coatcheck.policy.file.overlap import any_paths_overlap, hosts_overlap
from coatcheck.policy.file.problem import Finding, Level, Location
from coatcheck.policy.file.public_suffix import public_suffix


def review_credential(place: Location, spec: CredentialSpec) -> Iterator[Finding]:
    """What is wrong with one credential on its own."""
    injectors = [_injector(each) for each in spec.places]
    for index, inject in enumerate(spec.places):
        where = _where(place, spec, index)
        yield from _review_place(where, inject)
        if index:
            yield from _beside(where, spec, injectors, index)
    if spec.also:
        message = "also is deprecated: inject takes a list of places"
        instead = "move its places into a list below inject"
        yield Finding((*place, "also"), message, instead, Level.WARNING, Code.DEPRECATED)
    first = injectors[0]
    if spec.handle == "optional" and first is not None and first.needs_handle:
        message = f"without a handle nothing shows where in the {first.key} the secret belongs"
        yield Finding((*place, "handle"), message, "remove `handle: optional`")
    if spec.handle == "optional" and (spec.env or spec.shape):
        message = "the handle is optional, but clients may still check that the value looks like a key"
        if not spec.env:
            yield Finding(
                (*place, "shape"), message, "add env, or remove shape", Level.WARNING, Code.NEEDLESS
            )
    for index, host in enumerate(spec.hosts):
        # A secret that signs stays; every other one would be sent to the owner of the name.
        if host.wildcard and sends_secret(spec) and public_suffix(host.suffix):
            message = f"{host}: every customer of that service could receive this secret"
            yield Finding((*place, "hosts", index), message, "write the exact hosts")


def sends_secret(spec: CredentialSpec) -> bool:
    """Whether the secret itself leaves; True where the file does not say how."""
    injectors = [_injector(each) for each in spec.places]
    return any(injector is None or injector.sends_secret for injector in injectors)


def lasting_signatures(place: Location, spec: CredentialSpec) -> Iterator[Location]:
    """Where a credential makes signatures that count as long as the key."""
    for index, each in enumerate(spec.places):
        injector = _injector(each)
        if injector is not None and injector.outlasts_handle:
            yield (*_where(place, spec, index), injector.key)


def _injector(inject: InjectSpec) -> Injector | None:
    """None when it does not name one way: `_review_place` says so."""
    return inject.build() if len(inject.ways()) == 1 else None


def _where(place: Location, spec: CredentialSpec, index: int) -> Location:
    """Where the file has a place: below `inject`, which may be a list, or below `also`."""
    inside = index - len(spec.inject)
    return (*place, "also", inside) if inside >= 0 else (*place, "inject", index)


def _beside(
    where: Location, spec: CredentialSpec, injectors: list[Injector | None], index: int
) -> Iterator[Finding]:
    """What is wrong with a place because it is not the only one."""
    pair = [each for each in (injectors[0], injectors[index]) if each is not None]
    single = sorted({each.key for each in pair if not each.beside_others})
    if single:
        message = f"{' and '.join(single)} cannot be combined with another place"
        yield Finding(where, message, "write header, basic or query")
    if spec.handle == "optional":
        listed = "also" if where[2] == "also" else "all places but one"
        message = "without a handle nothing shows which place is meant"
        yield Finding(where, message, f"remove `handle: optional`, or remove {listed}")
    if spec.places[index] in spec.places[:index]:
        yield Finding(where, "this place is declared already", "remove it")


def _review_place(where: Location, inject: InjectSpec) -> Iterator[Finding]:
    ways, written = inject.ways(), inject.written()
    if len(ways) != 1:
        said = " and ".join(ways) if ways else "nothing"
        yield Finding(
            where,
            f"{where[2]} says {said}; a secret is put into one place",
            'write one, such as `{header: Authorization, value: "Bearer {secret}"}`',
        )
        return
    for way in WAYS.values():
        for key in way.keys:
            if key in written and way.key not in ways:
                message = f"{key} describes a {way.key}, and there is none"
                yield Finding((*where, key), message, f"add {way.key}, or remove {key}")


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
        elif optional and _spots(first) & _spots(second):
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


def _spots(spec: CredentialSpec) -> set[tuple[str, str]]:
    """What of a request the first place writes. The linter asks about the others, request by request."""
    injector = _injector(spec.places[0])
    return {injector.spot} if injector is not None else set()
