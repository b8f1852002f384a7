"""Logs for machines and people, without credentials, forged lines or locals."""

import io
import json
import logging
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace

import pytest

from coatcheck.telemetry.event_table import TABLE
from coatcheck.telemetry.log import LogFormat, configure, log_event
from tests.telemetry.every_event import EVERY
from tests.telemetry.samples import ALARM, ALL_EVENTS

BEARER = "Bearer " + "abcdef0123456789" * 2
HANDLE = "cch_" + "eyJhbGciOiJFZERTQSJ9.e30.c2lnbmF0dXJl"


@pytest.fixture
def restored() -> Iterator[None]:
    """Logging and the hooks as they were."""
    root, own = logging.getLogger(), logging.getLogger("coatcheck")
    mitm = logging.getLogger("mitmproxy")
    kept = root.handlers[:], root.level, own.level, mitm.level, sys.excepthook, threading.excepthook
    yield
    root.handlers[:], sys.excepthook, threading.excepthook = kept[0], kept[4], kept[5]
    root.setLevel(kept[1])
    own.setLevel(kept[2])
    mitm.setLevel(kept[3])
    logging.captureWarnings(capture=False)


@pytest.fixture(params=list(LogFormat))
def format_(request: pytest.FixtureRequest) -> LogFormat:
    return LogFormat(request.param)


def stream(format_: LogFormat, level: str = "info") -> io.StringIO:
    out = io.StringIO()
    configure(format_, level, out)
    return out


@pytest.mark.usefixtures("restored")
@pytest.mark.parametrize(
    "text",
    [
        HANDLE,
        BEARER,
        "Basic dXNlcjpwYXNzd29yZA==",
        "authorization: AWS4-HMAC-SHA256 Credential=abcdef0123456789",
        "x-vault-token: abcdef0123456789",
        "('x-api-key', 'abcdef0123456789')",
        "https://user:abcdef0123456789@example.com/",
        "GET https://example.com/a?key=abcdef0123456789",
        "Unexpected data from server: b'abcdef0123456789'",
        'Unexpected data from server: b"abcdef0123456789',
        "hvs." + "abcdef0123456789" * 2,
        "ghp_" + "abcdef0123456789" * 2,
    ],
)
def test_what_looks_like_a_credential_is_masked(format_: LogFormat, text: str) -> None:
    """In the message, in its arguments, and in an exception's text."""
    out = stream(format_)
    log = logging.getLogger("coatcheck.test")
    log.warning("saw " + text)  # noqa: G003
    log.warning("saw %s", text)
    try:
        raise ValueError(text)
    except ValueError:
        log.exception("failed")
    written = out.getvalue()
    assert written.count("saw ") == 2 and "ValueError" in written
    for secret in ("abcdef0123456789", "eyJ", "dXNlcjpw"):
        assert secret not in written


@pytest.mark.usefixtures("restored")
def test_no_message_forges_a_line(format_: LogFormat) -> None:
    """Newlines and escape sequences in a message or an exception stay inside their record."""
    out = stream(format_)
    try:
        raise ValueError("x\n2026-01-01 info forged\x1b[2J")
    except ValueError:
        logging.getLogger("coatcheck").exception("one\ntwo\u2028three")
    lines = out.getvalue().splitlines()
    assert all(line.isprintable() for line in lines)
    heads = [line for line in lines if not line.startswith("    ")]
    assert len(heads) == 1 and "one\\ntwo\\u2028three" in heads[0].replace("\\\\", "\\")
    if format_ is LogFormat.JSON:
        assert json.loads(heads[0])["exception"][-1].startswith("ValueError: x\\n2026")


@pytest.mark.usefixtures("restored")
def test_exceptions_show_where_and_not_what_was_held(format_: LogFormat) -> None:
    """File, line and function of cause and effect; no locals and no source text."""

    def inner(held: str) -> None:
        raise KeyError(len(held))

    out = stream(format_)
    try:
        try:
            inner("a-local-secret")
        except KeyError as error:
            raise RuntimeError("outer") from error
    except RuntimeError:
        logging.getLogger("coatcheck").exception("failed")
    written = out.getvalue()
    assert written.index("in inner") < written.index("KeyError: 14") < written.index("RuntimeError: outer")
    assert "a-local-secret" not in written


@pytest.mark.usefixtures("restored")
def test_libraries_stay_quiet_at_debug() -> None:
    """mitmproxy's INFO lines hold URLs, botocore's DEBUG lines credentials: our level is not theirs."""
    out = stream(LogFormat.HUMAN, "debug")
    for name in ("mitmproxy.proxy.server", "botocore.auth", "urllib3", "asyncio"):
        logging.getLogger(name).info("library")
    logging.getLogger("coatcheck.x").debug("ours")
    assert "ours" in out.getvalue() and "library" not in out.getvalue()


@pytest.mark.usefixtures("restored")
def test_what_nobody_caught_is_masked_too() -> None:
    """An exception that ends a thread goes through the same formatter."""
    out = stream(LogFormat.JSON)

    def die() -> None:
        raise ValueError(BEARER)

    thread = threading.Thread(target=die)
    thread.start()
    thread.join()
    (line,) = out.getvalue().splitlines()
    assert json.loads(line)["level"] == "critical" and "abcdef" not in line


@pytest.mark.usefixtures("restored")
def test_a_message_is_bounded_and_a_broken_one_harmless() -> None:
    """A megabyte is cut; arguments that do not fit the message are not printed."""
    out = stream(LogFormat.JSON)
    log = logging.getLogger("coatcheck")
    log.warning("%s", "a" * 1_000_000)
    log.warning("%d", BEARER)
    first, second = out.getvalue().splitlines()
    assert len(first) < 3000 and "abcdef" not in second


@pytest.mark.usefixtures("restored")
def test_each_event_has_its_level() -> None:
    """Alarms warn, policies inform, single requests only at debug."""
    out = stream(LogFormat.JSON)
    for event in ALL_EVENTS:
        log_event(event)
    levels = [json.loads(line)["level"] for line in out.getvalue().splitlines()]
    assert levels == ["warning", "info", "info", "info", "info", "warning", "info"]
    log_event(ALARM)
    assert "handle_stolen" in out.getvalue().splitlines()[-1]
    verbose = stream(LogFormat.JSON, "debug")
    for event in ALL_EVENTS:
        log_event(event)
    assert len(verbose.getvalue().splitlines()) == 11


@pytest.mark.usefixtures("restored")
@pytest.mark.parametrize("level", ["info", "warning", "error", "critical"])
def test_a_line_is_written_at_every_level_that_lets_it_through(level: str) -> None:
    """Some events, as a policy that is refused, are graver than others of their kind. No line is lost."""
    wanted = [
        line.level
        for event in EVERY
        if (log := TABLE[type(event)].log) is not None and (line := log.line(event)) is not None
        if line.level >= logging.getLevelName(level.upper())
    ]
    out = stream(LogFormat.JSON, level)
    for event in EVERY:
        log_event(event)
    levels = [json.loads(line)["level"] for line in out.getvalue().splitlines()]
    assert wanted and levels == [logging.getLevelName(each).lower() for each in wanted]


@pytest.mark.usefixtures("restored")
def test_an_alarm_names_only_what_is_known_of_it() -> None:
    """A misplaced handle's has no credential, an unknown connection's nobody at all."""
    out = stream(LogFormat.HUMAN)
    log_event(ALARM)
    log_event(replace(ALARM, credential=""))
    log_event(replace(ALARM, credential="", session="", tenant=""))
    assert [line.partition("coatcheck.events: ")[2] for line in out.getvalue().splitlines()] == [
        "alarm handle_stolen: tenant acme session s-2 credential openai: shown by s-1's sandbox",
        "alarm handle_stolen: tenant acme session s-2: shown by s-1's sandbox",
        "alarm handle_stolen: no session: shown by s-1's sandbox",
    ]
