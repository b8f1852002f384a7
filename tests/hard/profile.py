"""A pytest plugin (`-p tests.hard.profile`): each property gets ten times its examples, new ones every time.

Loaded before any test is collected, so that `tests.fuzz.budget` sees it. Properties elsewhere in the suite
that name no number of examples follow it, too.
"""

from hypothesis import settings

from tests.fuzz.budget import HARD

settings.register_profile(HARD, max_examples=1000, deadline=None, database=None, print_blob=True)
settings.load_profile(HARD)
