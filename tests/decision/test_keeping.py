"""Which lives a sandbox has had, and whose handles its processes may hold."""

from dataclasses import replace

from coatcheck.decision.keeping import Comeback, Life, line_of, sessions_of, still_needed


def life(generation: int, after: int | None = None) -> Life:
    return Life(generation, {"agent": f"ses_{generation}"}, {"agent": ("api",)}, after)


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
    back = Comeback("there", 3, LIVES, "sbx_a")
    assert back.last == LIVES[2]
    assert replace(back, lives=()).last is None
