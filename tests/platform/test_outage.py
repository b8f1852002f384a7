"""An outage is logged once."""

from coatcheck.platform.outage import Outage


def test_it_is_told_when_it_begins_changes_and_ends() -> None:
    """Not each time it is noticed, and its end only when it had begun."""
    outage = Outage()
    assert not outage.over()
    assert [outage.noticed(why) for why in ("full", "full", "gone", "gone", "full")] == [
        True,
        False,
        True,
        False,
        True,
    ]
    assert [outage.over(), outage.over()] == [True, False]
    assert outage.noticed("full")


def test_a_reason_may_be_left_out() -> None:
    """Where only that it is wrong matters."""
    outage = Outage()
    assert [outage.noticed(), outage.noticed()] == [True, False]
    assert outage.over() and outage.why is None
