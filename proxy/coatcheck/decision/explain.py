"""Why a policy answers a request as it does: which rule, which credential, and why not the others.

For people who write policies. The request path asks `policy.match` and nothing here.
"""

from collections.abc import Collection
from dataclasses import dataclass

from coatcheck.decision.denial import EXPLANATIONS, Deny, Reason
from coatcheck.decision.message import Destination, RequestHead
from coatcheck.decision.policy import Credential, Policy, Rule, credential_allows, fits, match


@dataclass(frozen=True, slots=True)
class RuleView:
    """One rule of the policy: `reason` None means that it would allow the request on its own."""

    name: str
    chosen: bool
    reason: Reason | None
    why: str


@dataclass(frozen=True, slots=True)
class CredentialView:
    """One credential of the policy."""

    name: str
    usable: bool
    why: str


@dataclass(frozen=True, slots=True)
class PolicyExplanation:
    """The whole answer to `coatcheck policy explain METHOD URL`."""

    policy: str
    request: str
    """Method and URL without the query, which may carry a credential."""
    denied: Deny | None
    rules: tuple[RuleView, ...]
    credentials: tuple[CredentialView, ...]


def explain(
    policy: Policy, session_credentials: Collection[str], destination: Destination, head: RequestHead
) -> PolicyExplanation:
    """What `policy` says to a session that was granted `session_credentials`.

    `destination.host` is canonical, as everywhere in the core.
    """
    found = match(policy, destination, head)
    denied = found if isinstance(found, Deny) else None
    chosen = None if isinstance(found, Deny) else found
    return PolicyExplanation(
        policy=policy.name,
        request=f"{head.method} {destination.url}{head.path}",
        denied=denied,
        rules=tuple(_rule(rule, chosen, destination, head) for rule in policy.rules),
        credentials=tuple(
            _credential(credential, chosen, session_credentials, destination, head)
            for credential in policy.credentials.values()
        ),
    )


def render(explanation: PolicyExplanation) -> str:
    """Plain text, one line a rule and a credential, the answer first."""
    denied = explanation.denied
    if denied is None:
        rule = next(view.name for view in explanation.rules if view.chosen)
        lines = [f"{explanation.request}: allowed by {rule!r} of policy {explanation.policy}"]
    else:
        lines = [f"{explanation.request}: refused by policy {explanation.policy}: {denied.reason}"]
        lines.append(f"  {denied.detail or EXPLANATIONS[denied.reason].message}")
    lines.append("rules, in the order in which they are tried:")
    lines += [f"  {'->' if view.chosen else '  '} {view.name}: {view.why}" for view in explanation.rules]
    lines.append("credentials:")
    lines += [
        f"  {'->' if view.usable else '  '} {view.name}: {view.why}" for view in explanation.credentials
    ]
    return "\n".join(lines if explanation.credentials else lines[:-1]) + "\n"


def _rule(rule: Rule, chosen: Rule | None, destination: Destination, head: RequestHead) -> RuleView:
    if not any(host.matches(destination.host) for host in rule.hosts):
        return RuleView(
            rule.name, False, Reason.HOST_NOT_ALLOWED, f"it is for {', '.join(map(str, rule.hosts))}"
        )
    reason = fits(rule, destination, head)
    if chosen is not None and rule.name == chosen.name:
        return RuleView(rule.name, True, None, "it is the first that fits")
    if chosen is not None and rule in chosen.further:
        why = "its terms hold as well: servers may take the request for one that it fits"
        return RuleView(rule.name, False, reason, why)
    if reason is None:
        why = (
            "it fits, but an earlier rule decides" if chosen else "it fits, but the request was refused first"
        )
        return RuleView(rule.name, False, None, why)
    return RuleView(rule.name, False, reason, _why_not(rule, reason))


def _why_not(rule: Rule, reason: Reason) -> str:
    match reason:
        case Reason.PORT_NOT_ALLOWED:
            return f"it allows ports {', '.join(map(str, sorted(rule.ports)))}"
        case Reason.METHOD_NOT_ALLOWED:
            return f"it allows {', '.join(sorted(rule.methods))}"
        case Reason.PATH_NOT_ALLOWED:
            return f"it allows {', '.join(map(str, rule.paths))}"
        case Reason.PROTOCOL_REFUSED if rule.tunnel:
            return "it is a tunnel, in which no request is seen"
        case _:
            return EXPLANATIONS[reason].message


def _credential(
    credential: Credential,
    chosen: Rule | None,
    granted: Collection[str],
    destination: Destination,
    head: RequestHead,
) -> CredentialView:
    refused = credential_allows(credential, destination, head)
    if chosen is None:
        return CredentialView(credential.name, False, "no rule allows the request")
    if credential.name not in chosen.credentials:
        return CredentialView(credential.name, False, f"{chosen.name!r} does not list it")
    if refused is not None:
        what = refused.detail.rpartition(" ")[2] if refused.alarm else "plain HTTP"
        return CredentialView(credential.name, False, f"it may not be sent here: {what}")
    if credential.name not in granted:
        return CredentialView(credential.name, False, "the session was not granted it")
    why = "injected in place of its handle" if credential.handle_required else "injected without a handle"
    return CredentialView(credential.name, True, why)
