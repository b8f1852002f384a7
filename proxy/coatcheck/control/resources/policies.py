"""/v1/policies: what is in force, why it answers as it does, and reading it again."""

from collections.abc import Collection
from typing import cast
from urllib.parse import urlsplit

from coatcheck.control import models
from coatcheck.control.caller import EVERY, Action
from coatcheck.control.context import Context
from coatcheck.control.operation import Answer, Ask, Operation
from coatcheck.control.problem import ControlProblem, Refusal, unknown_session
from coatcheck.control.resources.sessions import caller_of
from coatcheck.decision.explain import explain, render
from coatcheck.decision.host import HostRefused, split_authority
from coatcheck.decision.message import Destination, RequestHead
from coatcheck.decision.policy import Policy
from coatcheck.policy.bundle.signed import Accepted
from coatcheck.policy.shadow import Shadow
from coatcheck.state.errors import Problem

RELOAD_SECONDS = 120.0
"""Until an answer: a file of ten thousand rules is parsed in seconds, beside others that changed too."""


def _all(context: Context, ask: Ask) -> models.PolicyList:
    caller = caller_of(ask)
    policies, accepted = context.backend.state.policies, context.backend.policies.bundle
    return models.PolicyList(
        refused=(context.backend.policies.last_refused or None) if caller.of_policy(EVERY) else None,
        bundle=_bundle(accepted) if accepted is not None else None,
        shadow=_shadow(context.backend.shadow) if caller.of_policy(EVERY) else None,
        policies=[
            models.PolicyView(
                name=policy.name,
                owner=policy.owner,
                sha256=policy.sha256,
                credentials=sorted(policy.credentials),
                rules=[rule.name for rule in policy.rules],
            )
            for _, policy in sorted(policies.items())
            if caller.of_policy(policy.name)
        ],
    )


def _bundle(accepted: Accepted) -> models.BundleView:
    bundle = accepted.bundle
    return models.BundleView(
        version=bundle.version,
        owner=bundle.owner,
        created=bundle.created,
        digest=bundle.digest,
        key=accepted.key,
    )


def _shadow(shadow: Shadow | None) -> models.ShadowView | None:
    if shadow is None:
        return None
    candidates = shadow.candidates.policies if shadow.candidates is not None else {}
    return models.ShadowView(
        policies=[
            models.PolicyHash(name=each.name, sha256=each.sha256) for _, each in sorted(candidates.items())
        ],
        refused=shadow.refused or None,
        results={result.value: count for result, count in shadow.results.items()},
    )


async def list_all(context: Context, ask: Ask) -> Answer:
    return _all(context, ask)


async def why(context: Context, ask: Ask) -> Answer:
    question = cast(models.Question, ask.body)
    destination, target = _read_url(question.url)
    policy, granted = _subject(context, ask, question)
    sent = tuple((name.lower(), value) for name, value in question.headers)
    head = RequestHead(question.method, target, (("host", destination.host), *sent))
    explanation = await context.read(lambda: explain(policy, granted, destination, head))
    return models.Explanation(
        policy=explanation.policy,
        request=explanation.request,
        allowed=explanation.denied is None,
        reason=explanation.denied.reason if explanation.denied is not None else None,
        rules=[
            models.RuleExplained(name=rule.name, chosen=rule.chosen, reason=rule.reason, why=rule.why)
            for rule in explanation.rules
        ],
        credentials=[
            models.CredentialExplained(name=each.name, usable=each.usable, why=each.why)
            for each in explanation.credentials
        ],
        text=render(explanation),
    )


def _subject(context: Context, ask: Ask, question: models.Question) -> tuple[Policy, Collection[str]]:
    """The policy that is asked, and the credentials that the session was granted (all, without one)."""
    state, caller = context.backend.state, caller_of(ask)
    if (question.session is None) == (question.policy is None):
        raise ControlProblem(
            Problem.BAD_VALUE, "name either a session or a policy", "Leave one of the two out."
        )
    name, granted = question.policy, None
    if question.session is not None:
        session = state.sessions.by_id.get(question.session)
        if session is None or not caller.sees(session):
            raise unknown_session(question.session)
        name, granted = session.policy, session.credentials
    policy = state.policies.get(name or "")
    if policy is None or not caller.of_policy(policy.name):
        raise ControlProblem(
            Problem.UNKNOWN_POLICY, f"there is no policy {name}", "See `coatcheck policy list`."
        )
    return policy, policy.credentials if granted is None else granted


def _read_url(url: str) -> tuple[Destination, str]:
    try:
        parts = urlsplit(url)
        host, port = split_authority(parts.netloc, 443 if parts.scheme == "https" else 80)
    except HostRefused as refused:
        raise _bad_url(str(refused)) from None
    except ValueError:
        raise _bad_url("it cannot be read") from None
    target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    return Destination(parts.scheme, host, port), target


def _bad_url(what: str) -> ControlProblem:
    return ControlProblem(
        Problem.BAD_VALUE, f"the URL is not one that a request could have: {what}", "Write it in full."
    )


async def reload(context: Context, ask: Ask) -> Answer:
    refused = await context.bridge.call(context.backend.reload, RELOAD_SECONDS)
    if refused:
        what = "; ".join(f"{name}: {problem}" for name, problem in refused.items())
        raise ControlProblem(
            Refusal.POLICY_REFUSED,
            f"not reloaded, what was in force stays: {what}",
            "Mend it, try `coatcheck policy check`, and reload again.",
        )
    return _all(context, ask)


OPERATIONS = (
    Operation(
        "list_policies",
        "GET",
        "/v1/policies",
        Action.SEE,
        "List the policies in force, the signed bundle that they came from, and what was refused since",
        list_all,
        models.PolicyList,
    ),
    Operation(
        "explain_policy",
        "POST",
        "/v1/policies/explain",
        Action.SEE,
        "Explain which rule and which credential a request would get, and why not the others",
        why,
        models.Explanation,
        body=models.Question,
        reasons=frozenset({Problem.BAD_VALUE, Problem.UNKNOWN_SESSION, Problem.UNKNOWN_POLICY}),
    ),
    Operation(
        "reload_policies",
        "POST",
        "/v1/policies/reload",
        Action.RELOAD,
        "Reload policies and grants, as SIGHUP does",
        reload,
        models.PolicyList,
        reasons=frozenset({Refusal.POLICY_REFUSED, Refusal.PLANE_STALLED}),
    ),
)
