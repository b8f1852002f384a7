"""Mutants that live because nothing that anybody could see differs: each with its reason, one by one.

A key is the diff as tests/hard/survivors.py writes it, so a change of the line asks for a new look.
"""

REASONS: dict[str, dict[str, tuple[str, ...]]] = {}
"""Module -> reason -> diffs."""


def reason(module: str, diff: str) -> str:
    """Why the mutant may live; empty when nobody has said so."""
    return next((why for why, diffs in REASONS.get(module, {}).items() if diff in diffs), "")
