"""/v1/sessions: open, renew, revoke, end, list, show."""

from http import HTTPStatus
from typing import Final, cast

from coatcheck.certificates.client_environment import (
    environment,
    file_variables,
    git_variables,
    proxy_variables,
    trust_variables,
)
from coatcheck.control import models
from coatcheck.control.caller import Action, Caller
from coatcheck.control.context import Context
from coatcheck.control.opening import is_transparent, open_session
from coatcheck.control.operation import Answer, Ask, Operation
from coatcheck.control.problem import ControlProblem, Reason, Refusal, unknown_session
from coatcheck.control.views import (
    git_logins,
    handle_view,
    lease_expires_at,
    minted_view,
    proxy_view,
    session_view,
)
from coatcheck.decision.message import OriginClass
from coatcheck.decision.session import Session
from coatcheck.state.errors import Problem
from coatcheck.state.issued import MintedHandle
from coatcheck.state.sessions import OWN_SANDBOX

GONE: Final[frozenset[Reason]] = frozenset({Problem.UNKNOWN_SESSION})
GIVING: Final[frozenset[Reason]] = frozenset(
    {
        Problem.BAD_VALUE,
        Problem.CAPACITY,
        Problem.NOT_DURABLE,
        Problem.NOT_RECORDED,
        Problem.UNKNOWN_CREDENTIAL,
        Refusal.DRAINING,
    }
)
TAKING: Final[frozenset[Reason]] = GONE | {Problem.NOT_DURABLE, Problem.NOT_RECORDED}


def caller_of(ask: Ask) -> Caller:
    """The caller, whom the dispatcher has authenticated and found to hold the operation's action."""
    if ask.caller is None:
        raise RuntimeError("an operation with an action ran without a caller")
    return ask.caller


def find(context: Context, ask: Ask) -> Session:
    """The session in the path, if the caller may know of it: another's is as unknown as none."""
    session_id = ask.path["session"]
    session = context.backend.state.sessions.by_id.get(session_id)
    if session is None or not caller_of(ask).sees(session):
        raise unknown_session(session_id)
    return session


def check_gift(caller: Caller, session: Session) -> None:
    """Whether the caller's grant *still* covers the session: it may have changed since it was opened."""
    lacks = caller.may_give(session.tenant, session.policy, session.isolation, session.origin.kind)
    if lacks is not None:
        raise forbidden(lacks)


def forbidden(lacks: str) -> ControlProblem:
    return ControlProblem(
        Refusal.FORBIDDEN,
        f"your grant does not cover {lacks}",
        "Ask the owner of the daemon's grants file to add it.",
    )


async def open_one(context: Context, ask: Ask) -> Answer:
    wanted = cast(models.NewSession, ask.body)
    caller = caller_of(ask)
    kind = wanted.origin.origin_class if wanted.origin is not None else OriginClass.SOCKET
    lacks = caller.may_give(wanted.tenant, wanted.policy, wanted.isolation, kind)
    if lacks is not None:
        raise forbidden(lacks)
    if context.backend.draining:
        raise ControlProblem(
            Refusal.DRAINING, "the daemon is shutting down", "Open the session when it is back."
        )
    if wanted.parent is not None:
        parent = context.backend.state.sessions.by_id.get(wanted.parent)
        if parent is None or not caller.sees(parent):
            raise unknown_session(wanted.parent)
    opened = await open_session(context, wanted, caller.name)
    state, trust = context.backend.state, context.backend.trust_for(opened.session.id)
    policy = state.policies.get(wanted.policy)
    handles = {minted.credential: minted_view(minted, policy) for minted in opened.handles}
    variables: dict[str, str] = {}
    for handle in handles.values():
        variables |= handle.environment
    # Last, so that no credential of a policy can send clients elsewhere.
    variables |= environment(
        git_variables(git_logins(opened.handles, policy)),
        trust_variables(trust),
        file_variables(trust),
        proxy_variables(opened.url) if opened.url and opened.url.startswith("http") else (),
    )
    return HTTPStatus.CREATED, models.SessionOpened(
        session=session_view(opened.session, state),
        lease_expires_at=lease_expires_at(opened.session, state),
        handles=handles,
        environment=variables,
        proxy=proxy_view(context.backend, opened.session.id, opened.url),
    )


async def renew(context: Context, ask: Ask) -> Answer:
    found = find(context, ask)
    check_gift(caller_of(ask), found)
    wanted = cast(models.Renewal, ask.body)
    state, caller = context.backend.state, caller_of(ask).name
    session = await context.give(lambda: state.renew(found.id, caller, wanted.lease_seconds))
    return models.SessionRenewed(
        session=session_view(session, state), lease_expires_at=lease_expires_at(session, state)
    )


async def rebind(context: Context, ask: Ask) -> Answer:
    found = find(context, ask)
    check_gift(caller_of(ask), found)
    state, caller = context.backend.state, caller_of(ask).name

    def rebound() -> tuple[Session, tuple[MintedHandle, ...]]:
        # By its mark, which it has from its opening on: its sandbox may not have begun.
        if state.listeners().get(found.id) == OWN_SANDBOX:
            raise ControlProblem(
                Problem.BAD_VALUE,
                f"session {found.id} is of a sandbox of this daemon, whose processes hold its handles",
                "Restore or fork the sandbox: each gives it a new session of a later generation.",
            )
        return state.rebind(found.id, caller)

    session, minted = await context.give(rebound)
    policy = state.policies.get(session.policy)
    handles = {each.credential: minted_view(each, policy) for each in minted}
    variables: dict[str, str] = {}
    for handle in handles.values():
        variables |= handle.environment
    return models.SessionRebound(session=session_view(session, state), handles=handles, environment=variables)


async def revoke(context: Context, ask: Ask) -> Answer:
    found = find(context, ask)
    why = cast(models.Revocation, ask.body).why or ""
    state, caller = context.backend.state, caller_of(ask).name
    session = await context.take(lambda: state.revoke(found.id, caller, why))
    return models.SessionClosed(session=session_view(session, state))


async def end(context: Context, ask: Ask) -> Answer:
    found = find(context, ask)
    state, caller = context.backend.state, caller_of(ask).name
    session = await context.take(lambda: state.end(found.id, caller))
    return models.SessionClosed(session=session_view(session, state))


async def show(context: Context, ask: Ask) -> Answer:
    session = find(context, ask)
    backend = context.backend
    handles = await context.read(lambda: backend.state.handles(session.id))
    url = backend.endpoint(session.id)
    if url is None and session.origin.kind is not OriginClass.SOCKET and not is_transparent(session.origin):
        url = backend.proxy_url
    policy = backend.state.policies.get(session.policy)
    credentials = policy.credentials if policy is not None else {}
    return models.SessionShown(
        aws=[
            name
            for name in sorted(session.credentials & credentials.keys())
            if credentials[name].inject.aws_keys
        ],
        session=session_view(session, backend.state),
        handles=[handle_view(handle) for handle in handles],
        proxy=proxy_view(backend, session.id, url),
    )


async def list_all(context: Context, ask: Ask) -> Answer:
    query = cast(models.SessionQuery, ask.query)
    return await context.read(lambda: _page(context, caller_of(ask), query))


def _page(context: Context, caller: Caller, query: models.SessionQuery) -> models.SessionList:
    """One page in the order of ids, which no session that opens or ends in between can shift."""
    state = context.backend.state
    by_id = state.sessions.by_id
    page: list[models.SessionView] = []
    for session_id in sorted(by_id):
        session = by_id[session_id]
        if (query.after is not None and session_id <= query.after) or not caller.sees(session):
            continue
        if any(
            wanted is not None and wanted != getattr(session, name)
            for name, wanted in (
                ("tenant", query.tenant),
                ("subject", query.subject),
                ("policy", query.policy),
                ("opened_by", query.opened_by),
            )
        ):
            continue
        if session_id not in state.sessions.by_id:  # forgotten since the snapshot was taken
            continue
        view = session_view(session, state)
        if query.status is not None and view.status is not query.status:
            continue
        if len(page) == query.limit:
            return models.SessionList(sessions=page, next=page[-1].id)
        page.append(view)
    return models.SessionList(sessions=page, next=None)


OPERATIONS = (
    Operation(
        "open_session",
        "POST",
        "/v1/sessions",
        Action.OPEN,
        "Open a session. The answer has its handles, shown only here, and the environment of its sandbox",
        open_one,
        models.SessionOpened,
        body=models.NewSession,
        status=HTTPStatus.CREATED,
        reasons=GIVING
        | {
            Problem.UNKNOWN_POLICY,
            Problem.UNKNOWN_SESSION,
            Problem.ORIGIN_TAKEN,
            Refusal.NO_SHARED_LISTENER,
            Refusal.LISTENER,
            Refusal.PLANE_STALLED,
        },
    ),
    Operation(
        "list_sessions",
        "GET",
        "/v1/sessions",
        Action.SEE,
        "List the sessions that the caller may see, by ID; `next` is the `after` of the next page",
        list_all,
        models.SessionList,
        query=models.SessionQuery,
    ),
    Operation(
        "show_session",
        "GET",
        "/v1/sessions/{session}",
        Action.SEE,
        "Show a session, its handles without their values, and its proxy",
        show,
        models.SessionShown,
        reasons=GONE,
    ),
    Operation(
        "renew_session",
        "POST",
        "/v1/sessions/{session}/renew",
        Action.OPEN,
        "Renew the session's lease",
        renew,
        models.SessionRenewed,
        body=models.Renewal,
        reasons=GIVING | GONE | {Problem.SESSION_CLOSED},
    ),
    Operation(
        "rebind_session",
        "POST",
        "/v1/sessions/{session}/rebind",
        Action.OPEN,
        "Revoke all handles of a session whose sandbox was restored, and create new ones, shown only"
        " here. Not for the sandboxes of this API, which restore and fork give new sessions",
        rebind,
        models.SessionRebound,
        reasons=GIVING | GONE | {Problem.SESSION_CLOSED},
    ),
    Operation(
        "revoke_session",
        "POST",
        "/v1/sessions/{session}/revoke",
        Action.END,
        "Revoke a session: it is refused everywhere from now on. Answered once that is on disk",
        revoke,
        models.SessionClosed,
        body=models.Revocation,
        reasons=TAKING,
    ),
    Operation(
        "end_session",
        "POST",
        "/v1/sessions/{session}/end",
        Action.END,
        "End a session whose sandbox ended normally",
        end,
        models.SessionClosed,
        reasons=TAKING,
    ),
)
