"""What a linter sees only by asking which rule decides which requests: computed, for all of them."""

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field

from coatcheck.decision.policy import (
    Credential,
    Policy,
    Rule,
)
from coatcheck.policy.diff.answers import Answer, Cell, answer, cells_at, hosts_of, tunnels_at
from coatcheck.policy.diff.cells import HostCell
from coatcheck.policy.file.codes import Code
from coatcheck.policy.file.overlap import path_covers
from coatcheck.policy.file.problem import Finding, Level, Location
from coatcheck.policy.lint.slips import Slips


@dataclass(slots=True)
class Decided:
    """What one rule decides: every cell that no earlier rule decides."""

    cells: list[tuple[Cell, Answer]] = field(default_factory=list)
    ports: set[tuple[HostCell, int]] = field(default_factory=set)
    """Of a tunnel: hosts and ports."""


def lint_requests(policy: Policy) -> Iterator[Finding]:
    """Findings about who decides what. Raises TooComplex."""
    decided = {rule.name: Decided() for rule in policy.rules}
    slips = Slips(policy)
    for host in hosts_of([policy]):
        for cell in cells_at(host, [policy]):
            found = answer(policy, cell)
            if found is not None:
                decided[found.rule.name].cells.append((cell, found))
                slips.see(cell, found.rule)
        for port, rule in tunnels_at(host, policy).items():
            decided[rule.name].ports.add((host, port))
    for index, rule in enumerate(policy.rules):
        own = decided[rule.name]
        if not own.cells and not own.ports:
            yield _finding(
                ("rules", index, "name"),
                f'"{rule.name}" is never reached: earlier rules decide all of it first',
                "move it up, or remove it",
                Code.RULE_NEVER_REACHED,
            )
        elif rule.credentials and not rule.tunnel:
            yield from _refused(("rules", index), rule, own)
            yield from _in_vain(("rules", index), rule, own)
            yield from _same_place(("rules", index), rule, own, policy)
    yield from slips.findings(frozenset(name for name, own in decided.items() if own.cells))
    yield from _opened_wider(policy, decided)


def _refused(place: Location, rule: Rule, own: Decided) -> Iterator[Finding]:
    """Hosts, methods and paths of the rule at which no credential counts."""
    if not any(found.ways for _, found in own.cells):
        message = f'"{rule.name}" refuses every request: none of its credentials can be used in any of them'
        yield _finding((*place, "credentials"), message, "widen a credential", Code.ALWAYS_REFUSED)
        return
    parts: list[tuple[str, int, str, list[Answer]]] = []
    for index, host in enumerate(rule.hosts):
        here = [found for cell, found in own.cells if host.matches(cell.host.member)]
        parts.append(("hosts", index, str(host), here))
    for index, path in enumerate(rule.paths):
        parts.append(("paths", index, str(path), [f for cell, f in own.cells if path in cell.path.matched]))
    for key, index, text, here in parts:
        if here and not any(found.ways for found in here):
            message = f'"{rule.name}" refuses everything at {text}: none of its credentials may go there'
            instead = "add it to a credential, or move it to a rule without credentials"
            yield _finding((*place, key, index), message, instead, Code.ALWAYS_REFUSED)
    for method in sorted(rule.methods):
        here = [found for cell, found in own.cells if cell.method == method]
        if here and not any(found.ways for found in here):
            message = f'"{rule.name}" refuses every {method}: none of its credentials allows that method'
            yield _finding((*place, "methods"), message, f"remove {method}", Code.ALWAYS_REFUSED)


def _in_vain(place: Location, rule: Rule, own: Decided) -> Iterator[Finding]:
    used = {name for _, found in own.cells for name in found.credentials}
    for index, name in enumerate(rule.credentials):
        if used and name not in used:
            message = f'no request that "{rule.name}" decides may carry {name}'
            yield _finding((*place, "credentials", index), message, "remove it here", Code.CREDENTIAL_IN_VAIN)


def _same_place(place: Location, rule: Rule, own: Decided, policy: Policy) -> Iterator[Finding]:
    """One that needs no handle, and one whose handle may stand where the first is put."""
    pairs = {
        (found.unasked, other)
        for _, found in own.cells
        if found.unasked
        for other in found.credentials - {found.unasked}
    }
    for shy, other in sorted(pairs):
        if _spots(policy.credentials[shy]) & _spots(policy.credentials[other]):
            message = f"{shy} needs no handle, and is put where the handle of {other} may stand"
            where: Location = (*place, "credentials", rule.credentials.index(other))
            yield _finding(where, message, f"make {shy} `handle: required`", Code.CREDENTIALS_SHARE_PLACE)


def _spots(credential: Credential) -> set[tuple[str, str]]:
    return {injector.spot for injector in credential.injectors}


def _opened_wider(policy: Policy, decided: dict[str, Decided]) -> Iterator[Finding]:
    """Rules without credentials that reach further than the credential's own rule, at the same host."""
    guarded: dict[HostCell, list[Rule]] = defaultdict(list)
    for rule in policy.rules:
        for host in dict.fromkeys(cell.host for cell, found in decided[rule.name].cells if found.ways):
            if rule.credentials:
                guarded[host].append(rule)
    for index, rule in enumerate(policy.rules):
        if rule.credentials:
            continue
        own = decided[rule.name]
        hosts = {cell.host for cell, _ in own.cells} | {host for host, _ in own.ports}
        for host in sorted(hosts & guarded.keys()):
            narrow = next((other for other in guarded[host] if rule.tunnel or _wider(rule, other)), None)
            if narrow is not None:
                at = next(i for i, pattern in enumerate(rule.hosts) if pattern.matches(host.member))
                names = ", ".join(narrow.credentials)
                kept = f'"{narrow.name}" keeps {host.pattern} for {names}'
                message = f'{kept}, and "{rule.name}" opens it more widely'
                instead = "write the methods and paths that are needed without a credential"
                yield _finding(("rules", index, "hosts", at), message, instead, Code.HOST_OPENED_WIDER)
                break


def _wider(rule: Rule, narrow: Rule) -> bool:
    """`rule` reaches all paths of `narrow`, and more: paths, or methods."""
    if not rule.paths:
        return bool(narrow.paths) or not rule.methods <= narrow.methods
    if not narrow.paths or not _covers(rule, narrow):
        return False
    return rule.methods > narrow.methods or not _covers(narrow, rule)


def _covers(outer: Rule, inner: Rule) -> bool:
    return all(any(path_covers(wide, path) for wide in outer.paths) for path in inner.paths)


def _finding(where: Location, message: str, instead: str, code: Code) -> Finding:
    return Finding(where, message, instead, Level.WARNING, code)
