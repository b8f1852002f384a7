"""What our operator does in the middle of a case: `control: {call: revoke_handle, credential: vendor}`; and
when: `running: sent` waits for a request to have left, `running: answered` for some of its answer.
`approve: {remember: 900}` says yes to the next request that is asked about, once, while later steps run;
`after: {swap: […]}` changes the policy between question and answer."""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Final, NoReturn
from unittest import mock

from coatcheck.decision.session import Session
from coatcheck.request.approvals import Answer
from coatcheck.secrets import SecretUnavailable
from tests.corpus.driver import PATIENCE, STEPS, Driver
from tests.corpus.proxies import Coatcheck

type Call = Callable[[Coatcheck, str, Mapping[str, Any]], None]
"""(the proxy, the session's id, what the step says). May block on the disk."""


def revoke_session(proxy: Coatcheck, session: str, _: Mapping[str, Any]) -> None:
    proxy.daemon.state.revoke(session, "the corpus")


def mark_revoked(proxy: Coatcheck, session: str, _: Mapping[str, Any]) -> None:
    """The first instant of a revocation: it is visible, and nobody was told yet."""
    _changed(proxy, session, revoked=True)


def revoke_handle(proxy: Coatcheck, session: str, asked: Mapping[str, Any]) -> None:
    """Every handle of one credential."""
    state = proxy.daemon.state
    for each in state.handles(session):
        if each.claims.cred == asked["credential"]:
            state.revoke_handle(session, each.claims.jti, "the corpus")


def new_generation(proxy: Coatcheck, session: str, _: Mapping[str, Any]) -> None:
    """Restored or forked: what was held before is another life's."""
    proxy.daemon.state.rebind(session, "the corpus")


def lapse(proxy: Coatcheck, session: str, _: Mapping[str, Any]) -> None:
    """Nobody renewed the lease: as if its time had passed."""
    _changed(proxy, session, lease_deadline=0.0)


def grow_old(proxy: Coatcheck, session: str, _: Mapping[str, Any]) -> None:
    """The session has reached its maximum age."""
    _changed(proxy, session, expires_at=proxy.daemon.state.clock.now().wall - 1.0)


def pass_time(proxy: Coatcheck, _: str, asked: Mapping[str, Any]) -> None:
    """The wall clock goes forward, and stays there; sessions live for hours."""
    clock = proxy.daemon.state.clock
    clock.raise_to(clock.now().wall + float(asked["seconds"]))


def _changed(proxy: Coatcheck, session: str, **values: float) -> None:
    registry = proxy.daemon.state.registry
    changed: Session = replace(registry.sessions.by_id[session], **values)  # type: ignore[arg-type]
    registry.sessions = registry.sessions.having(changed)


CALLS: Final[dict[str, Call]] = {
    "revoke_session": revoke_session,
    "mark_revoked": mark_revoked,
    "revoke_handle": revoke_handle,
    "new_generation": new_generation,
    "lapse": lapse,
    "grow_old": grow_old,
    "pass_time": pass_time,
}


async def _control(driver: Driver, asked: Mapping[str, Any], _: Mapping[str, Any]) -> None:
    assert isinstance(driver.proxy, Coatcheck)
    if asked.get("unswept"):
        _no_sweep(driver, driver.proxy)
    session = driver.inside.parent if asked.get("whose") == "parent" else driver.inside.session
    await asyncio.to_thread(CALLS[asked["call"]], driver.proxy, session, asked)


def _no_sweep(driver: Driver, proxy: Coatcheck) -> None:
    """The daemon's look at what is over, once a second, waits until the case is over: it would end the
    connection on which the case shows that a request is looked at by itself."""
    patched = mock.patch.object(proxy.daemon.state, "sweep", return_value=())
    patched.start()

    async def restore() -> None:
        patched.stop()

    driver.undo.append(("sweep", restore))


async def _running(driver: Driver, what: str, _: Mapping[str, Any]) -> None:
    """Waits until a request of the sandbox has left (`sent`), or some of its answer has come (`answered`)."""
    assert isinstance(driver.proxy, Coatcheck)
    exchange = driver.proxy.daemon.exchange
    async with asyncio.timeout(4 * PATIENCE):
        while not any(
            call.committed and (what == "sent" or call.bytes_down)
            for call in exchange.calls
            if call.session is not None and call.session.id == driver.inside.session
        ):
            await asyncio.sleep(0.01)


async def _approve(driver: Driver, asked: Mapping[str, Any], _: Mapping[str, Any]) -> None:
    """Somebody who says yes to one request of this sandbox, as soon as it is asked about."""
    assert isinstance(driver.proxy, Coatcheck)
    approvals = driver.proxy.daemon.exchange.approvals

    async def answer() -> None:
        async with asyncio.timeout(4 * PATIENCE):
            while True:
                for each in approvals.waiting():
                    if each.session.id == driver.inside.session:
                        if "after" in asked:
                            await STEPS["policy"](driver, asked["after"], {})
                        approvals.answer(each.id, Answer(True, "the corpus", float(asked.get("remember", 0))))
                        return
                await asyncio.sleep(0.005)

    task = asyncio.create_task(answer())

    async def end() -> None:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    driver.undo.append(("approval", end))


async def _restarted(driver: Driver, store: str, _: Mapping[str, Any]) -> None:
    """The daemon knows no secret, as after a restart. `silent`: and the store does not say any."""
    assert isinstance(driver.proxy, Coatcheck)
    known, cache = driver.proxy.daemon.exchange.secrets, driver.proxy.daemon.store

    def forget() -> None:
        # Nothing else but a restart forgets them.
        for each in (known._tenants, known._known, cache._entries):  # noqa: SLF001
            each.clear()

    forget()
    if store != "silent":
        return
    patched = mock.patch.multiple(cache, fetch=_silent, history=_silent)
    patched.start()

    async def restore() -> None:
        patched.stop()
        forget()

    driver.undo.append(("store", restore))


async def _silent(*_: object) -> NoReturn:
    raise SecretUnavailable("the corpus's store is silent")


STEPS["control"] = _control
STEPS["restarted"] = _restarted
STEPS["running"] = _running
STEPS["approve"] = _approve
