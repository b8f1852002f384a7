"""What docs/hard/mutation.md says: figures, and every survivor with the reason why it may live."""

from collections import Counter
from pathlib import Path

from tests.hard import equivalent, survivors

INTRODUCTION = """Of every mutant of `proxy/coatcheck/decision/`: killed by the unit tests of decision/;
refused by `mypy --strict`; a change of nothing but words for people; alive and listed below with the reason;
alive without one; not run (yet: results are kept, and the next run goes on from here)."""


def report(mutants: Path, harmless: dict[str, str]) -> tuple[str, bool]:
    """The Markdown, and whether a mutant is alive that nobody has looked at."""
    rows: list[tuple[str, Counter[str]]] = []
    listed: list[tuple[survivors.Survivor, str]] = []
    unexplained: list[survivors.Survivor] = []
    sums = Counter[str]()
    for meta in sorted(mutants.glob("coatcheck/decision/*.py.meta")):
        module = meta.name.removesuffix(".py.meta")
        counts = Counter(
            harmless.get(f"{module}.{name}") or _word(code)
            for name, code in survivors.codes(mutants, module).items()
        )
        if not counts:
            continue
        alive = [
            one for one in survivors.survivors(mutants, module) if f"{module}.{one.name}" not in harmless
        ]
        for one in alive:
            why = equivalent.reason(module, one.diff)
            if why:
                listed.append((one, why))
                counts["alive"] -= 1
                counts["equivalent"] += 1
            else:
                unexplained.append(one)
        sums += counts
        rows.append((module, counts))
    lines = [
        INTRODUCTION,
        "",
        "| module | mutants | killed | types | words | listed | alive | not run |",
        "|---|---:|---:|---:|---:|---:|---:|---:|",
        *(_row(module, counts) for module, counts in [*rows, ("**all**", sums)]),
        "",
    ]
    if unexplained:
        lines += ["## Alive: to be killed, or explained in tests/hard/equivalent.py", ""]
        lines += [line for one in unexplained for line in _item(one)]
    if listed:
        lines += ["## Alive, and why they may be", ""]
        for why in dict.fromkeys(why for _, why in listed):
            lines += [f"**{why}**", ""]
            lines += [line for one, its in listed if its == why for line in _item(one)]
            lines.append("")
    return "\n".join(lines), bool(unexplained)


def _word(code: int | None) -> str:
    if code is None:
        return "not run"
    return "alive" if code in survivors.SURVIVED else "killed"  # by a failed test, a crash or a time-out


def _row(module: str, counts: Counter[str]) -> str:
    words = ("killed", "types", "words", "equivalent", "alive", "not run")
    return f"| {module} | {counts.total()} | " + " | ".join(str(counts[word]) for word in words) + " |"


def _item(one: survivors.Survivor) -> list[str]:
    return (
        [f"- `{one.module}`, {one.name.rpartition('__mutmut_')[0].removeprefix('x_')}:", "  ```diff"]
        + [f"  {line}" for line in one.diff.splitlines()]
        + ["  ```"]
    )
