"""A reader that follows what happens misses nothing, or is told so."""

from coatcheck.telemetry.events import SandboxChange, SandboxEvent
from coatcheck.telemetry.sandbox_feed import KEPT, SandboxFeed


def event(sandbox: str = "sbx_a", tenant: str = "acme") -> SandboxEvent:
    return SandboxEvent(
        1.0,
        SandboxChange.CREATED,
        sandbox,
        ("ses_a",),
        tenant,
        "agent",
        "default",
        "launcher",
        "microvm",
        "emulated",
    )


def everything(_: SandboxEvent) -> bool:
    return True


def test_each_is_told_once_and_in_order() -> None:
    """From now on, and then from where the answer before ended; in pages."""
    feed = SandboxFeed()
    feed.put(event("before"))
    at = feed.after(None, everything, 10)
    assert at.events == () and not at.missed
    for name in ("a", "b", "c"):
        feed.put(event(name))
    first = feed.after(at.next, everything, 2)
    second = feed.after(first.next, everything, 2)
    assert [each.event.sandbox for each in (*first.events, *second.events)] == ["a", "b", "c"]
    assert feed.after(second.next, everything, 2).events == ()


def test_what_one_may_not_see_is_passed_over() -> None:
    """And not looked at again and again: the number goes on."""
    feed = SandboxFeed()
    at = feed.after(None, everything, 10)
    feed.put(event(tenant="globex"))
    page = feed.after(at.next, lambda each: each.tenant == "acme", 10)
    assert page.events == () and page.next == at.next + 1


def test_whoever_fell_behind_is_told() -> None:
    """The oldest are dropped, and the list of sandboxes is what helps then."""
    feed = SandboxFeed()
    at = feed.after(None, everything, 10)
    for _ in range(KEPT + 1):
        feed.put(event())
    page = feed.after(at.next, everything, 10)
    assert page.missed and len(page.events) == 10
    assert not feed.after(page.next, everything, 10).missed


def test_numbers_go_on_after_a_restart() -> None:
    """Somebody who asks with a number of the daemon before hears what came since, and that more may have."""
    old = SandboxFeed(lambda: 1_000.0)
    old.put(event())
    at = old.after(0, everything, 10).next
    new = SandboxFeed(lambda: 2_000.0)
    new.put(event("after"))
    page = new.after(at, everything, 10)
    assert [each.event.sandbox for each in page.events] == ["after"] and page.missed
