"""The README's tables, written from the code that they describe.

`python -m tests.docs_tables --write` rewrites every section between `<!-- table:NAME -->` and
`<!-- /table:NAME -->`; without `--write` it says which are stale. `tests/test_docs.py` does the same.
"""

import re
import sys
import types
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

from pydantic import SecretStr

from coatcheck.decision.verdict import EXPLANATIONS, Reason
from coatcheck.settings import Settings
from coatcheck.settings_problem import describe as settings
from coatcheck.telemetry.metrics_table import describe as metrics

ROOT = Path(__file__).parent.parent
README = ROOT / "README.md"
SECTION = re.compile(r"(<!-- table:(?P<name>[a-z-]+) -->\n).*?(<!-- /table:(?P=name) -->)", re.DOTALL)

_WORDS: dict[object, str] = {
    bool: "true or false",
    int: "whole number",
    float: "number",
    str: "text",
    Path: "path",
    SecretStr: "text",
    tuple: "JSON list",
    dict: "JSON object",
}


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def _table(heads: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    heads = list(heads)
    lines = [heads, ["---"] * len(heads), *([_cell(cell) for cell in row] for row in rows)]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines) + "\n"


def kind(annotation: Any) -> str:
    """A setting's type as a person writes it."""
    if isinstance(annotation, types.UnionType):
        (annotation,) = (part for part in get_args(annotation) if part is not type(None))
    if get_origin(annotation) is Literal:
        return ", ".join(f"`{word}`" for word in get_args(annotation))
    return _WORDS[get_origin(annotation) or annotation]


def _shown(default: str) -> str:
    return default if default == "unset" else f"`{default}`"


def settings_table() -> str:
    """Variable, type, default, and what it is for, its unit included."""
    fields = zip(settings(), Settings.model_fields.values(), strict=True)
    return _table(
        ("variable", "type", "default", "meaning"),
        (
            (f"`{variable}`", kind(field.annotation), _shown(default), meaning)
            for (variable, default, meaning), field in fields
        ),
    )


def reasons_table() -> str:
    """Every refusal: the word, the status, and what the sandbox is told."""
    rows = ((reason, EXPLANATIONS[reason]) for reason in Reason)
    return _table(
        ("reason", "status", "message"),
        ((f"`{reason.value}`", str(said.status), said.message) for reason, said in rows),
    )


def metrics_table() -> str:
    """Every metric as it is scraped."""
    return _table(
        ("metric", "type", "labels", "meaning"),
        (
            (f"`{doc.name}`", doc.type.value, ", ".join(f"`{label}`" for label in doc.labels), doc.help)
            for doc in metrics()
        ),
    )


TABLES: dict[str, Callable[[], str]] = {
    "settings": settings_table,
    "reasons": reasons_table,
    "metrics": metrics_table,
}


def current(text: str) -> str:
    """`text` with every marked section as the code says it. KeyError for a table that there is not."""
    return SECTION.sub(lambda found: f"{found[1]}\n{TABLES[found['name']]()}\n{found[3]}", text)


def sections(text: str) -> set[str]:
    """The names of the marked sections in `text`."""
    return {found["name"] for found in SECTION.finditer(text)}


def main(arguments: list[str]) -> int:
    text = README.read_text()
    wanted = current(text)
    if wanted == text:
        print("the tables of README.md are current")
        return 0
    if arguments != ["--write"]:
        print("the tables of README.md are stale: python -m tests.docs_tables --write", file=sys.stderr)
        return 1
    README.write_text(wanted)
    print("README.md written")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
