"""Readers in other threads always see whole values, and changes from several threads all happen."""

import threading

from coatcheck.decision.message import Peer
from coatcheck.decision.session import Session, identify
from coatcheck.state import State, StateSettings
from tests.state.house import WANTED, House


def test_a_reader_never_sees_half_a_change(house: House) -> None:
    """While sessions open, renew and end, each snapshot's two maps agree and its epoch only grows."""
    state = house.open(StateSettings(max_sessions=1_000))
    stop = threading.Event()
    wrong: list[str] = []
    readings = 0

    def read() -> None:
        nonlocal readings
        epoch = 0
        while not stop.is_set():
            seen = state.sessions
            readings += 1
            if seen.epoch < epoch:
                wrong.append("the epoch went back")
            epoch = seen.epoch
            wrong.extend(
                f"{session.id} differs"
                for session in seen.by_id.values()
                if seen.by_origin.get(session.origin) is not session
            )

    def write() -> None:
        try:
            for _ in range(15):
                session, _ = state.open_session(WANTED, "launcher")
                state.renew(session.id, "launcher")
                state.mint(session.id, "openai")
                state.revoke(session.id, "operator")
        except Exception as error:
            wrong.append(repr(error))

    reader = threading.Thread(target=read)
    writers = [threading.Thread(target=write) for _ in range(4)]
    for thread in (reader, *writers):
        thread.start()
    for thread in writers:
        thread.join()
    stop.set()
    reader.join()
    assert wrong == [] and readings > 0
    assert len(state.sessions.by_id) == 60 and all(s.revoked for s in state.sessions.by_id.values())


def test_after_revoke_returns_no_thread_sees_the_session_alive(state: State) -> None:
    """The order that the plane relies on: revoked, then answered."""
    seen_alive_after: list[str] = []
    for _ in range(20):
        session, _ = state.open_session(WANTED, "launcher")
        answered = threading.Event()

        def use(session: Session = session, answered: threading.Event = answered) -> None:
            while True:
                was_answered = answered.is_set()
                found = identify(Peer("l", (session.origin,)), state.sessions.by_origin, state.clock.now())
                if was_answered:
                    if isinstance(found, Session):
                        seen_alive_after.append(session.id)
                    return

        thread = threading.Thread(target=use)
        thread.start()
        state.revoke(session.id, "operator")
        answered.set()
        thread.join()
    assert seen_alive_after == []
