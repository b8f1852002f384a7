"""Types of untrusted input: a sandbox or an upstream wrote it, perhaps to cost as much time as it can.

A function that takes one of these types, or a head made of them, must take time linear in its length.
`tests/decision/test_outside.py` finds every such function by its annotations and feeds it its worst input.
"""

from typing import Annotated, Final

OUTSIDE: Final = "written by a sandbox or an upstream"

type OutsideText = Annotated[str, OUTSIDE]
"""Latin-1 text of a head."""
type OutsideBytes = Annotated[bytes, OUTSIDE]
"""A chunk of a body."""
