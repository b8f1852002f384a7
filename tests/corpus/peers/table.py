"""What came of it, as a Markdown table: a row a class, and three figures a proxy."""

from collections.abc import Mapping

from tests.corpus.judge import LEAKED
from tests.corpus.runner import Result


def table(found: Mapping[str, list[Result]]) -> str:
    """Of each proxy: runs that held; that let out what is to be refused, or refused what is allowed; that
    leaked a secret."""
    classes = list(dict.fromkeys(each.run.class_ for results in found.values() for each in results))
    rows = [f"| class | {' | '.join(f'{name}: held, not, leaked' for name in found)} |"]
    rows.append(f"|---|{'---|' * len(found)}")
    for class_ in [*classes, "all"]:
        cells = [
            _cell([each for each in results if class_ in (each.run.class_, "all")])
            for results in found.values()
        ]
        rows.append(f"| {class_} | {' | '.join(cells)} |")
    return "\n".join(rows)


def _cell(results: list[Result]) -> str:
    leaked = sum(any(wrong.startswith(LEAKED) for wrong in each.wrong) for each in results)
    held = sum(not each.wrong for each in results)
    return f"{held}, {len(results) - held - leaked}, {leaked}" if results else ""
