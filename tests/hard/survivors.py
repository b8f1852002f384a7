"""What mutmut left alive, sorted: caught by the type checker, only other words, or to be looked at.

Reads a `mutants/` tree: each `MODULE.py` holds every mutant as a function of its own, `MODULE.py.meta` says
which of them the tests killed.
"""

import ast
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from copy import deepcopy
from dataclasses import dataclass
from difflib import unified_diff
from pathlib import Path

SURVIVED = (0, 33)
"""Exit codes: every test passed; no test runs it at all."""
TYPE_ERRORS = frozenset(
    {
        *("arg-type", "assignment", "attr-defined", "call-arg", "call-overload", "comparison-overlap"),
        *("index", "misc", "operator", "return-value", "str-bytes-safe", "union-attr"),
    }
)
"""mypy's codes that are about the mutant; others are about the form in which mutmut writes it."""
_MUTANT = re.compile(r"(?P<function>.+)__mutmut_(?P<number>\d+)")
WORDED = {"Deny": (1, "detail"), "SandboxRefused": (1, "message"), "Replayed": (1, "then")} | dict.fromkeys(
    (
        *("HostRefused", "HeaderRefused", "CodingRefused", "SecretTooShort", "TypeError", "ValueError"),
        "Contradiction",
    ),
    (0, ""),
)
"""Calls -> where their words stand that people read and nothing branches on, by position and by name."""


@dataclass(frozen=True, slots=True)
class Survivor:
    """One mutant that no test noticed."""

    module: str
    name: str
    diff: str
    """The lines that differ, `-` and `+`."""


def codes(mutants: Path, module: str) -> dict[str, int | None]:
    """Mutant -> how it ended: 1 killed, 0 alive, None not run yet, others are crashes and time-outs."""
    meta = mutants / f"coatcheck/decision/{module}.py.meta"
    found = json.loads(meta.read_text())["exit_code_by_key"] if meta.exists() else {}
    return {key.rpartition(".")[2]: code for key, code in found.items()}


def unjudged(mutants: Path, module: str) -> list[str]:
    """`module.mutant` of those that were not run, or were not killed: the tests may be better now."""
    return [
        f"{module}.{name}"
        for name, code in codes(mutants, module).items()
        if code is None or code in SURVIVED
    ]


def not_worth_running(mutants: Path) -> dict[str, str]:
    """`module.mutant` -> `types` for what mypy does not let through, `words` for other words to people."""
    found = {f"{module}.{name}": "types" for module, name in _wrong_types(mutants)}
    for meta in mutants.glob("coatcheck/decision/*.py.meta"):
        module = meta.name.removesuffix(".py.meta")
        without = {name: _wordless(node) for name, node in _functions(meta.with_suffix("")).items()}
        for name in codes(mutants, module):
            if without[_original(name)] == without[name]:
                found[f"{module}.{name}"] = "words"
    return found


def survivors(mutants: Path, module: str) -> Iterator[Survivor]:
    """Those of a module that are alive."""
    alive = [name for name, code in codes(mutants, module).items() if code in SURVIVED]
    functions = _functions(mutants / f"coatcheck/decision/{module}.py") if alive else {}
    for name in alive:
        yield Survivor(module, name, _diff(functions[_original(name)], functions[name]))


def _original(name: str) -> str:
    found = _MUTANT.fullmatch(name)
    assert found is not None, name
    return f"{found['function']}__mutmut_orig"


def _functions(path: Path) -> dict[str, ast.FunctionDef]:
    tree = ast.parse(path.read_text())
    return {node.name: node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}


def _diff(original: ast.FunctionDef, mutant: ast.FunctionDef) -> str:
    one, other = (
        [f"{ast.unparse(each.args)})", *ast.unparse(each).splitlines()[1:]] for each in (original, mutant)
    )
    lines = [line for line in unified_diff(one, other, lineterm="", n=0) if line[:3] not in ("---", "+++")]
    return "\n".join(f"{line[0]} {line[1:].strip()}" for line in lines if line[0] in "+-")


def _worded(node: ast.Return) -> ast.Return:
    """A sentence that is returned, alone or in a choice, is any sentence."""
    choices = [node.value.body, node.value.orelse] if isinstance(node.value, ast.IfExp) else [node.value]
    for each in choices:
        if isinstance(each, ast.Constant) and " " in str(each.value):
            each.value = "words"
    return node


class _Wordless(ast.NodeTransformer):
    """Takes the words for people out of a function."""

    def visit_Call(self, node: ast.Call) -> ast.AST:
        self.generic_visit(node)
        name = node.func.id if isinstance(node.func, ast.Name) else ""
        if name in WORDED:
            position, keyword = WORDED[name]
            node.args = node.args[:position]
            node.keywords = [each for each in node.keywords if each.arg != keyword]
        return node

    def visit_Return(self, node: ast.Return) -> ast.AST:
        self.generic_visit(node)
        return _worded(node)

    def visit_Assign(self, node: ast.Assign) -> ast.AST | None:
        self.generic_visit(node)
        words = any(isinstance(each, ast.Name) and each.id in ("detail", "then") for each in node.targets)
        return None if words else node


def _wordless(function: ast.FunctionDef) -> str:
    """What it does, as text that other words and another name leave the same."""
    copied = deepcopy(function)
    copied.name = "f"
    return ast.dump(_Wordless().visit(copied))


def _wrong_types(mutants: Path) -> set[tuple[str, str]]:
    """(module, mutant) of those that `mypy --strict`, which `make lint` runs, does not let through."""
    command = [sys.executable, "-m", "mypy", "--strict", "--output", "json", "-p", "coatcheck.decision"]
    done = subprocess.run(command, cwd=mutants, capture_output=True, text=True, check=False)
    lines: dict[str, set[int]] = {}
    for line in done.stdout.splitlines():
        if line.startswith("{"):
            error = json.loads(line)
            if error["code"] in TYPE_ERRORS:
                lines.setdefault(Path(error["file"]).stem, set()).add(error["line"])
    found: set[tuple[str, str]] = set()
    for module, numbers in lines.items():
        functions = _functions(mutants / "coatcheck/decision" / f"{module}.py")
        for name, node in functions.items():
            end = node.end_lineno or node.lineno
            if _MUTANT.fullmatch(name) and numbers & set(range(node.lineno, end + 1)):
                found.add((module, name))
    return found
