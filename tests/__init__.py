"""A package, so that no `tests` that a dependency ships can stand in for it."""
