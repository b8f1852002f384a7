"""Whether a verdict still stands under the policy as it is now."""

from dataclasses import replace

from coatcheck.decision.denial import Deny, Reason
from coatcheck.decision.message import Destination, RequestHead
from coatcheck.decision.observing import OBSERVED, observed
from coatcheck.decision.policy import Credential, Policy, Rule, credential_allows, match, tunnel_rule
from coatcheck.decision.verdict import Inject, Pass


def revalidate(
    policy: Policy | None,
    destination: Destination,
    head: RequestHead,
    verdict: Pass | Inject | None,
    wall: float,
) -> Rule | Deny:
    """What the policy in force says of a request that was allowed under another one. `wall`: Unix seconds."""
    if policy is None:
        return Deny(Reason.POLICY_MISSING)
    if head.method == "CONNECT":
        rule = tunnel_rule(policy, destination.host, destination.port)
        return rule or Deny(Reason.HOST_NOT_ALLOWED, "the policy no longer lets it through unopened")
    found = match(policy, destination, head)
    if isinstance(found, Deny):
        was = verdict is not None and verdict.rule.name == OBSERVED
        return (observed(policy, found, destination, head, wall) if was else None) or found
    if found.asking is not None and (verdict is None or not _was_approved(found, verdict.rule)):
        return Deny(Reason.APPROVAL_TIMEOUT, "the policy now requires an approval, and none was given")
    if not isinstance(verdict, Inject):
        return found
    for injection in verdict.injections:
        # A rule that stays may have lost the credential, and the credential its host.
        credential = policy.credentials.get(injection.credential.name)
        if credential is None or credential.name not in found.credentials:
            return Deny(Reason.HANDLE_OUT_OF_SCOPE, "the policy no longer gives the credential")
        if not _is_the_same(credential, injection.credential):
            # What was decided, and perhaps approved, is neither what the policy now means nor what it meant.
            return Deny(Reason.HANDLE_OUT_OF_SCOPE, "the policy changed the credential meanwhile")
        refused = credential_allows(credential, destination, head)
        if refused is not None:
            return refused
    return found


def revalidate_as(
    policy: Policy | None,
    destination: Destination,
    head: RequestHead,
    verdict: Pass | Inject | None,
    method: str,
) -> Deny | None:
    """Whether a request that is on its way may also be one of `method`, which its body asks for: only where
    that is allowed under no other terms than those that were met. Nobody who was asked has seen it."""
    as_method = replace(head, headers=(*head.headers, ("x-http-method-override", method)))
    found = match(policy, destination, as_method) if policy is not None else Deny(Reason.POLICY_MISSING)
    if isinstance(found, Deny):
        return replace(found, detail=f"its form asks for {method}")
    if verdict is None or verdict.rule.asking is not None or found.names != verdict.rule.names:
        return Deny(Reason.METHOD_NOT_ALLOWED, f"its form asks for {method}, under other terms", found.name)
    injections = verdict.injections if isinstance(verdict, Inject) else ()
    refused = (credential_allows(each.credential, destination, as_method) for each in injections)
    return next((each for each in refused if each is not None), None)


def _is_the_same(credential: Credential, before: Credential) -> bool:
    """Whether it still stands for the same secret in the same place. `before` has only the place that was
    used."""
    places = (credential.inject, *credential.other_injectors)
    return credential.secret == before.secret and before.inject in places


def _was_approved(rule: Rule, before: Rule) -> bool:
    """Whether an approval that was given under `before` is one for what is asked now."""
    return before.asking is not None and rule.names == before.names


def denial_of(answer: object) -> Deny:
    """A Deny as it is. What is neither that nor a permission is one, too (I3)."""
    return answer if isinstance(answer, Deny) else Deny(Reason.INTERNAL_ERROR, "no verdict")
