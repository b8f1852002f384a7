"""The types of what comes from outside: a sandbox or an upstream wrote it, to cost as much as it can.

Whoever takes one of these, or a head made of them, must be linear in its length and is fed its worst input by
`tests/decision/test_outside.py`, which finds all of them by their annotations.
"""

from typing import Annotated, Final

OUTSIDE: Final = "written by a sandbox or an upstream"

type OutsideText = Annotated[str, OUTSIDE]
"""Latin-1 text of a head."""
type OutsideBytes = Annotated[bytes, OUTSIDE]
"""A chunk of a body."""
