"""Making a sandbox: what this machine gives is measured, the caller's grant is held against *that*, sessions
are opened for it, and only then is anything started. Whatever fails takes back what was done before it."""

import asyncio
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Final

from coatcheck.certificates.client_environment import (
    environment,
    file_variables,
    git_variables,
    proxy_variables,
    trust_variables,
)
from coatcheck.certificates.trust import TrustFiles
from coatcheck.control import models
from coatcheck.control.caller import Caller
from coatcheck.control.context import Context
from coatcheck.control.opening import Opened, open_session
from coatcheck.control.problem import ControlProblem, Refusal
from coatcheck.control.resources.sandbox_models import NewSandbox
from coatcheck.control.resources.sessions import forbidden
from coatcheck.control.views import git_logins, minted_view
from coatcheck.decision.message import OriginClass
from coatcheck.decision.session import Isolation
from coatcheck.durable.autoscale import Autoscale
from coatcheck.durable.backends import Choice
from coatcheck.durable.durability import Durability
from coatcheck.durable.elastic import Growth
from coatcheck.durable.incarnations import Incarnations, Maker, WantedIdentity
from coatcheck.durable.lifecycle import Contradiction, EffectiveLifecycle, LifecycleRequest, settle
from coatcheck.durable.sandbox import (
    Admitted,
    Sandbox,
    SandboxIdentity,
    WantedSandbox,
    WantedVolume,
)
from coatcheck.durable.snapshotting import held_back
from coatcheck.sandbox.sandbox import Backend, SandboxProblem, trust_inside
from coatcheck.state.errors import Problem

PROXY_INSIDE: Final = "http://127.0.0.1:3128"
"""Where the guest's agent listens for programs that know of proxies."""
DIRECT_INSIDE: Final = ("localhost", "127.0.0.1", "169.254.169.254", "169.254.170.2")
"""The sandbox's own loopback, and its metadata service, which the agent answers there."""
AFTERLIFE_SECONDS: Final = 120
"""How long a session could outlive the sandbox's time limit, which is what really ends it."""


async def open_sandbox(context: Context, wanted: NewSandbox, caller: Caller) -> Sandbox:
    """A sandbox that is starting. ControlProblem or SandboxRefused, with nothing left of it, when it cannot
    be had."""
    sandboxes = context.backend.sandboxes
    choice = await asyncio.to_thread(sandboxes.choose, wanted.backend, wanted.image)
    lacks = caller.may_give(wanted.tenant, wanted.policy, choice.isolation, OriginClass.SOCKET)
    if lacks is not None:
        problem = forbidden(lacks)
        raise ControlProblem(problem.reason, f"{problem.message} ({choice.why})", problem.hint)
    names = [each.name for each in wanted.identities]
    if len(set(names)) != len(names):
        raise ControlProblem(Problem.BAD_VALUE, "an identity appears twice", "Name each once.")
    if missing := set(names) - set(choice.identities):
        raise ControlProblem(
            SandboxProblem.NO_BACKEND,
            f"users cannot be distinguished here, so there is no identity {', '.join(missing)}",
            "Use a microVM, or a daemon that runs as root.",
        )
    policy = context.backend.state.policies.get(wanted.policy)
    settled = _settled(wanted)
    savable = not held_back(policy, [each.credentials for each in wanted.identities])
    _check_keeping(settled.keeping, choice, savable=savable)
    asked = WantedSandbox(
        tenant=wanted.tenant,
        subject=wanted.subject,
        policy=wanted.policy,
        opened_by=caller.name,
        choice=choice,
        limits=_limits(wanted) | (_longest(context, wanted) if settled.runs_long else {}),
        volumes=tuple(WantedVolume(each.name, each.at, each.size_mib) for each in wanted.volumes),
        idle_seconds=settled.idle_seconds,
        filesystem=policy.filesystem if policy is not None else None,
        keeping=settled.keeping,
        savable=savable,
        growth=_growth(wanted),
    )
    identities = [
        WantedIdentity(each.name, each.credentials, lease_seconds=wanted.lease_seconds)
        for each in wanted.identities
    ]
    return await incarnations(context).make(asked, identities)


def incarnations(context: Context) -> Incarnations:
    """With sessions of this API."""
    backend = context.backend
    return Incarnations(backend.sandboxes, backend.state, partial(open_identity, context), context.take)


def maker(context: Context, caller: Caller) -> Maker:
    """Held to the caller's grants, against what this machine gives."""

    def check(wanted: WantedSandbox, isolation: Isolation) -> None:
        if context.backend.draining:
            raise ControlProblem(
                Refusal.DRAINING, "the daemon is shutting down", "Try again when it is back."
            )
        lacks = caller.may_give(wanted.tenant, wanted.policy, isolation, OriginClass.SOCKET)
        if lacks is not None:
            raise forbidden(lacks)

    return Maker(caller.name, check)


def _settled(wanted: NewSandbox) -> EffectiveLifecycle:
    """What its lifecycle stands for. ControlProblem for what contradicts it."""
    try:
        return settle(
            LifecycleRequest(
                wanted.lifecycle,
                wanted.idle,
                wanted.idle_seconds,
                wanted.recover,
                wanted.snapshot_every,
                wanted.rotate_snapshots,
                len(wanted.identities),
            )
        )
    except Contradiction as error:
        raise ControlProblem(Problem.BAD_VALUE, str(error), error.hint) from None


def _check_keeping(keeping: Durability, choice: Choice, *, savable: bool) -> None:
    """ControlProblem for a promise that cannot be kept here."""
    if not keeping.saves or (savable and choice.backend is Backend.MICROVM):
        return
    why = (
        f"it is a {choice.backend} sandbox"
        if choice.backend is not Backend.MICROVM
        else "policy lets its handles be in no snapshot (inherit: false)"
    )
    raise ControlProblem(
        SandboxProblem.UNSAVABLE,
        f"{why}, so it can neither sleep, nor be saved, nor come back",
        "Ask for an ephemeral one, or for idle end, recover never and snapshot_every 0.",
    )


def _longest(context: Context, wanted: NewSandbox) -> dict[str, int]:
    """As long as the operator lets any sandbox run, and its sessions live."""
    if wanted.timeout_seconds is not None:
        return {}
    age = int(context.backend.state.settings.max_age) - AFTERLIFE_SECONDS
    return {"time": max(1, min(context.backend.longest_run, age))}


def _growth(wanted: NewSandbox) -> Growth | None:
    """None: it has one size. ControlProblem for an autoscaler that has nowhere to go."""
    if wanted.max_memory_mib is None and wanted.max_cpus is None:
        if wanted.autoscale is None:
            return None
        raise ControlProblem(
            SandboxProblem.BEYOND_LIMIT,
            "a sandbox without a maximum size cannot be scaled",
            "Say how far: max_memory_mib (--max-memory).",
        )
    rule = wanted.autoscale
    autoscale = Autoscale(**rule.model_dump()) if rule is not None else None
    return Growth(wanted.max_memory_mib, wanted.max_cpus, wanted.scaling, autoscale)


def _limits(wanted: NewSandbox) -> dict[str, int]:
    """By `sandbox.limits.LimitName`."""
    asked = {
        "memory": wanted.memory_mib,
        "cpus": wanted.cpus,
        "disk": wanted.disk_mib,
        "processes": wanted.processes,
        "output": wanted.output_mib,
        "network": wanted.network_mib_per_second,
        "time": wanted.timeout_seconds,
    }
    return {name: amount for name, amount in asked.items() if amount is not None}


async def open_identity(
    context: Context, admitted: Admitted, person: WantedIdentity, generation: int
) -> SandboxIdentity:
    """A session of its own, that only this identity's connections belong to."""
    most = context.backend.state.settings.max_age
    wanted = admitted.wanted
    session = models.NewSession(
        tenant=wanted.tenant,
        subject=wanted.subject,
        policy=wanted.policy,
        credentials=list(person.credentials) if person.credentials is not None else None,
        isolation=wanted.choice.isolation,
        lease_seconds=person.lease_seconds,
        max_age=min(most, admitted.run_seconds + AFTERLIFE_SECONDS),
        listen="sandbox",
        parent=person.parent,
    )
    opened = await open_session(context, session, wanted.opened_by, generation)
    trust = context.backend.trust_for(opened.session.id)
    return SandboxIdentity(
        name=person.name,
        session=opened.session.id,
        socket=(opened.url or "").removeprefix("unix://"),
        lease_seconds=opened.session.lease_seconds,
        environment=_environment(context, opened, person.name),
        ca=str(trust.ca.absolute()),
        bundle=str(trust.bundle.absolute()),
        java_truststore=str(trust.java_truststore.absolute()),
        credentials=tuple(sorted(opened.session.credentials)),
        generation=opened.session.generation,
    )


def _environment(context: Context, opened: Opened, identity: str) -> Mapping[str, str]:
    """Handles in place of secrets, and how programs inside find the proxy and trust it."""
    policy = context.backend.state.policies.get(opened.session.policy)
    inside = TrustFiles(*map(Path, trust_inside(identity)))
    variables = environment(
        git_variables(git_logins(opened.handles, policy)),
        trust_variables(inside),
        file_variables(inside),
        proxy_variables(PROXY_INSIDE, DIRECT_INSIDE),
    )
    for minted in opened.handles:
        variables |= minted_view(minted, policy).environment
    return variables
