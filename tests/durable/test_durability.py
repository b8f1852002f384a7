"""Which lives a sandbox has had, and whose handles its processes may hold."""

from dataclasses import replace

from coatcheck.durable.durability import (
    Durability,
    Incarnation,
    RestorePoint,
    Saved,
    first_due,
    line_of,
    sessions_of,
    still_needed,
    to_replace,
)


def life(generation: int, after: int | None = None) -> Incarnation:
    return Incarnation(generation, {"agent": f"ses_{generation}"}, {"agent": ("api",)}, after)


LIVES = (life(1), life(2, after=1), life(3, after=1), life(4, after=3))
"""Booted; woken; restored to the first; woken again."""


def test_a_line_leads_back_to_the_boot() -> None:
    """Only through the lives whose memory was carried on: what was begun and dropped is none of it."""
    assert [each.generation for each in line_of(LIVES, 4)] == [4, 3, 1]
    assert sessions_of(line_of(LIVES, 4)) == {"ses_4", "ses_3", "ses_1"}
    assert line_of(LIVES, 9) == ()


def test_a_line_that_bites_its_own_tail_ends() -> None:
    """A record that nobody wrote like that; but a daemon must not hang on it."""
    odd = (life(1, after=2), life(2, after=1))
    assert [each.generation for each in line_of(odd, 2)] == [2, 1]


def test_only_lives_that_something_began_from_are_kept() -> None:
    """Of the last life, and of each snapshot that is there; in order, each once."""
    assert [each.generation for each in still_needed(LIVES, (4,))] == [1, 3, 4]
    assert [each.generation for each in still_needed(LIVES, (4, 2, 4))] == [1, 2, 3, 4]


def test_a_comeback_knows_the_life_that_was_saved() -> None:
    """None of what came from elsewhere: nobody knows its sessions here."""
    back = RestorePoint("there", 3, LIVES, "sbx_a")
    assert back.last == LIVES[2]
    assert replace(back, lives=()).last is None


def test_only_the_oldest_periodic_snapshot_makes_room() -> None:
    """Named ones never, nor one that somebody begins from, and nothing as long as there is room or nobody
    said that it may."""
    saved = [Saved(name, 1.0, 1, 1) for name in ("mine", "auto-2", "auto-1", "automatic")]
    rotates = Durability(rotates=True)
    assert to_replace(saved, 4, rotates) == ("auto-2",)
    assert to_replace(saved, 4, rotates, used=["auto-2"]) == ("auto-1",)
    assert to_replace(saved, 4, rotates, used=["auto-1", "auto-2"]) == ()
    assert to_replace(saved, 5, rotates) == ()
    assert to_replace(saved, 4, Durability()) == ()
    assert to_replace([saved[0], saved[3]], 2, rotates) == ()


def test_where_the_limit_was_lowered_as_many_go_as_are_too_many() -> None:
    """Of the periodic ones; those that somebody named stay, whatever the limit."""
    saved = [Saved(name, 1.0, 1, 1) for name in ("auto-1", "mine", "auto-2", "auto-3")]
    rotates = Durability(rotates=True)
    assert to_replace(saved, 3, rotates) == ("auto-1", "auto-2")
    assert to_replace(saved, 1, rotates) == ("auto-1", "auto-2", "auto-3")


def test_who_came_back_takes_nothings_place_before_a_whole_period() -> None:
    """One that dies again and again within it is saved no more: what it was well in stays."""
    of_others = [Saved("auto-1", 500.0, 1, 1), Saved("mine", 900.0, 2, 1)]
    assert first_due(of_others, 3, every=3_600, soon=60, now=1_000.0) == 3_600
    assert first_due([Saved("auto-1", None, None, 1)], 3, every=3_600, soon=60, now=1_000.0) == 60
    assert first_due([], 1, every=3_600, soon=60, now=1_000.0) == 60


def test_another_daemon_goes_on_where_the_last_one_was() -> None:
    """A daemon that dies again and again saves no more often than one that lives; nor does a clock that was
    set back stop it for long."""
    own = [Saved("auto-1", 500.0, 2, 1), Saved("auto-2", 1_000.0, 3, 1)]
    assert first_due(own, 3, every=3_600, soon=60, now=1_600.0) == 3_000
    assert first_due(own, 3, every=3_600, soon=60, now=9_000.0) == 60
    assert first_due(own, 3, every=3_600, soon=60, now=0.0) == 3_600
