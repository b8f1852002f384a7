"""Mutants that live because nothing that anybody could see differs: each with its reason, one by one.

A key is the diff as tests/hard/survivors.py writes it, so a change of the line asks for a new look.
"""

from functools import cache
from pathlib import Path

REASONS = Path(__file__).parent / "may_live"
"""`MODULE.txt`: a reason behind `# `, then the diffs that it is for, an empty line between them."""


def reason(module: str, diff: str) -> str:
    """Why the mutant may live; empty when nobody has said so."""
    return _reasons(module).get(diff, "")


@cache
def _reasons(module: str) -> dict[str, str]:
    path = REASONS / f"{module}.txt"
    found: dict[str, str] = {}
    why = ""
    for block in path.read_text().split("\n\n") if path.exists() else ():
        for line in block.splitlines():
            if line.startswith("# "):
                why = line[2:]
        found["\n".join(line for line in block.strip("\n").splitlines() if line[:1] in "+-")] = why
    return found
