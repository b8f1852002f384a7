"""/v1/sessions/{session}/handles: mint for clients that can refresh; revoke one."""

from http import HTTPStatus
from typing import cast

from coatcheck.control import models
from coatcheck.control.caller import Action
from coatcheck.control.context import Context
from coatcheck.control.operation import Answer, Ask, Operation
from coatcheck.control.resources.sessions import GIVING, GONE, TAKING, caller_of, check_gift, find
from coatcheck.control.views import minted_view
from coatcheck.state.errors import Problem


async def mint(context: Context, ask: Ask) -> Answer:
    session = find(context, ask)
    check_gift(caller_of(ask), session)
    wanted = cast(models.NewHandle, ask.body)
    state, caller = context.backend.state, caller_of(ask).name
    minted = await context.give(lambda: state.mint(session.id, wanted.credential, wanted.ttl_seconds, caller))
    return HTTPStatus.CREATED, minted_view(minted, state.policies.get(session.policy))


async def revoke(context: Context, ask: Ask) -> Answer:
    session = find(context, ask)
    why = cast(models.Revocation, ask.body).why or ""
    state, caller, jti = context.backend.state, caller_of(ask).name, ask.path["jti"]
    await context.take(lambda: state.revoke_handle(session.id, jti, caller, why))
    return models.HandleRevoked(jti=jti)


OPERATIONS = (
    Operation(
        "mint_handle",
        "POST",
        "/v1/sessions/{session}/handles",
        Action.OPEN,
        "Create another handle, shown only here, for a client that can refresh",
        mint,
        models.MintedHandle,
        body=models.NewHandle,
        status=HTTPStatus.CREATED,
        reasons=GIVING | GONE | {Problem.SESSION_CLOSED},
    ),
    Operation(
        "revoke_handle",
        "POST",
        "/v1/sessions/{session}/handles/{jti}/revoke",
        Action.END,
        "Revoke one handle everywhere",
        revoke,
        models.HandleRevoked,
        body=models.Revocation,
        reasons=TAKING | {Problem.UNKNOWN_HANDLE},
    ),
)
