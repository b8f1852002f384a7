"""The documents' tables and the editors' schemas, written from the code that they describe.

`python -m tests.docs_tables --write` rewrites every section between `<!-- table:NAME -->` and
`<!-- /table:NAME -->`, and `policies/*schema.json` whole; without `--write` it says whether one is stale.
`tests/test_docs.py` and `tests/policy/test_editor_schema.py` hold them true.
"""

import ast
import json
import re
import subprocess
import sys
import types
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin

from pydantic import SecretStr

from coatcheck.decision.verdict import EXPLANATIONS, Reason
from coatcheck.policy.editor_schema import policy_schema, samples_schema
from coatcheck.settings.daemon import Settings
from coatcheck.settings.explained import describe as settings
from coatcheck.telemetry.metrics.table import describe as metrics
from tests.corpus import schema

ROOT = Path(__file__).parent.parent
README = ROOT / "README.md"
ARCHITECTURE = ROOT / "docs/architecture.md"
THREATS = ROOT / "docs/threat-model.md"
CORPUS = ROOT / "tests/corpus/README.md"
PACKAGE = Path("proxy/coatcheck")
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
    if get_origin(annotation) in (types.UnionType, Union):  # the second of a Literal or None
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


def modules() -> list[Path]:
    """The package's modules that git knows, as paths below it; a file somebody still writes is left out."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--", f"{PACKAGE}/*.py"], cwd=ROOT, check=True, capture_output=True
    ).stdout
    paths = [Path(text) for text in listed.decode().split("\0") if text]
    return sorted(path.relative_to(PACKAGE) for path in paths if (ROOT / path).is_file())


def meaning(path: Path) -> str:
    """The first sentence of a module's docstring."""
    text = ast.get_docstring(ast.parse((ROOT / PACKAGE / path).read_text())) or ""
    first = text.partition("\n\n")[0].replace("\n", " ")
    return re.split(r"(?<=[.])\s", first)[0].rstrip(".")


def module_map() -> str:
    """One line a module, by package. The words are the modules' own."""
    packages: dict[Path, list[Path]] = {}
    for path in modules():
        packages.setdefault(path.parent, []).append(path)
    lines = []
    for package, paths in packages.items():
        inits = [path for path in paths if path.name == "__init__.py"]
        said = meaning(inits[0]) if inits else "programs that are run, not imported"
        lines.append(f"{'coatcheck' if package == Path() else package}/  {said}")
        lines += [f"  {path.name:24}{meaning(path)}" for path in paths if path not in inits]
    return "```\n" + "\n".join(lines) + "\n```\n"


def corpus_table() -> str:
    """The corpus by class: what the class is about, its checks, cases, and runs (parameters and modes)."""
    ran = Counter(run.class_ for run in schema.runs())
    rows = [
        (
            name,
            file.says.strip(),
            len({case.check for case in file.cases} - {None}),
            len(file.cases),
            ran[name],
        )
        for name, file in schema.classes().items()
    ]
    total = ("all", "", len(schema.checks()), sum(row[3] for row in rows), sum(row[4] for row in rows))
    heads = ("class", "what holds", "checks", "cases", "runs")
    return _table(heads, ((str(cell) for cell in row) for row in (*rows, total)))


def invariants_table() -> str:
    """Each invariant: how many checks of the corpus hold it, with how many cases, of which classes."""
    by_check = schema.checks()
    rows = []
    for number in range(1, 11):
        invariant = f"I{number}"
        cases = [
            (name, case)
            for name, file in schema.classes().items()
            for case in file.cases
            if case.check is not None and by_check[case.check].invariant == invariant
        ]
        held = len({case.check for _, case in cases})
        rows.append(
            (invariant, str(held), str(len(cases)), ", ".join(dict.fromkeys(name for name, _ in cases)))
        )
    return _table(("invariant", "checks", "cases", "classes"), rows)


TABLES: dict[Path, dict[str, Callable[[], str]]] = {
    README: {"settings": settings_table, "reasons": reasons_table, "metrics": metrics_table},
    ARCHITECTURE: {"modules": module_map},
    THREATS: {"invariants": invariants_table},
    CORPUS: {"corpus": corpus_table},
}
SCHEMAS: dict[Path, Callable[[], dict[str, Any]]] = {
    ROOT / "policies/schema.json": policy_schema,
    ROOT / "policies/samples.schema.json": samples_schema,
}
"""Whole files, as `coatcheck policy schema` prints them."""


def current(document: Path, text: str) -> str:
    """`text` of `document` with every marked section as the code says it. KeyError for an unknown one."""
    return SECTION.sub(lambda found: f"{found[1]}\n{TABLES[document][found['name']]()}\n{found[3]}", text)


def sections(text: str) -> set[str]:
    """The names of the marked sections in `text`."""
    return {found["name"] for found in SECTION.finditer(text)}


def main(arguments: list[str]) -> int:
    stale = False
    for document in (*TABLES, *SCHEMAS):
        text = document.read_text()
        if document in SCHEMAS:
            wanted = json.dumps(SCHEMAS[document](), indent=2) + "\n"
        else:
            wanted = current(document, text)
        if wanted == text:
            continue
        stale = True
        name = document.relative_to(ROOT)
        if arguments == ["--write"]:
            document.write_text(wanted)
            print(f"{name} written")
        else:
            print(f"{name} is stale: python -m tests.docs_tables --write", file=sys.stderr)
    return 1 if stale and arguments != ["--write"] else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
