"""Every step of asynchronous work, found in its source; and something that happens right before one."""

import ast
import inspect
import sys
import textwrap
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import CodeType, ModuleType
from typing import Any

TOOL = 4
"""Of the numbers that sys.monitoring has, one that no debugger, coverage or profiler takes."""


type Work = Callable[..., Any]


def private(owner: object, *names: str) -> tuple[Work, ...]:
    """Work that only its owner calls. It fails and is killed at its steps like all other."""
    return tuple(getattr(owner, name) for name in names)


@dataclass(frozen=True)
class Step:
    """One place where the work waits for somebody else."""

    work: str
    text: str
    line: int
    code: CodeType = field(repr=False, compare=False)

    def __str__(self) -> str:
        return f"{self.work}: {self.text}"


def steps_of(works: Sequence[Work], known: Collection[Work] = ()) -> list[Step]:
    """In order; each line once. What only bounds others in time is no step; and work that is `known`, or one
    of `works`, is no step of the code that waits for it: its own steps are."""
    names = {work.__name__ for work in (*works, *known)}
    found = []
    for work in works:
        lines, first = inspect.getsourcelines(work)
        tree = ast.parse(textwrap.dedent("".join(lines)))
        waits = {
            node.lineno
            for node in ast.walk(tree)
            if (isinstance(node, ast.Await) and _called(node) not in names)
            or (isinstance(node, ast.AsyncWith) and "asyncio.timeout" not in lines[node.lineno - 1])
        }
        found += [
            Step(work.__qualname__, lines[line - 1].strip(), first + line - 1, work.__code__)
            for line in sorted(waits)
        ]
    return found


def calls_of(works: Sequence[Work]) -> list[Step]:
    """The same of work that is done in one go: each line that calls somebody, but for what it does after a
    failure."""
    found = []
    for work in works:
        lines, first = inspect.getsourcelines(work)
        tree = ast.parse(textwrap.dedent("".join(lines)))
        failures = {
            id(each)
            for node in ast.walk(tree)
            if isinstance(node, ast.ExceptHandler)
            for each in ast.walk(node)
        }
        calls = {
            node.lineno
            for node in ast.walk(tree)
            if isinstance(node, ast.Expr | ast.Assign | ast.Return)
            and id(node) not in failures
            and any(isinstance(each, ast.Call) for each in ast.walk(node))
        }
        found += [
            Step(work.__qualname__, lines[line - 1].strip(), first + line - 1, work.__code__)
            for line in sorted(calls)
        ]
    return found


def _called(node: ast.Await) -> str:
    function = node.value.func if isinstance(node.value, ast.Call) else node.value
    return function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")


def works_of(*modules: ModuleType) -> set[str]:
    """The names of everything asynchronous in them."""
    return {
        (f"{owner.name}." if owner is not None else "") + node.name
        for module in modules
        for owner, node in _functions(ast.parse(inspect.getsource(module)))
        if isinstance(node, ast.AsyncFunctionDef)
    }


def _functions(tree: ast.Module) -> Iterator[tuple[ast.ClassDef | None, ast.AST]]:
    for node in tree.body:
        if isinstance(node, ast.ClassDef):
            yield from ((node, each) for each in node.body)
        else:
            yield None, node


@contextmanager
def right_before(step: Step, happens: Callable[[], None]) -> Iterator[Sequence[Step]]:
    """`happens` is called when the step is about to be taken, the first time; what it raises is raised there.
    What is yielded is empty until then."""
    reached: list[Step] = []

    def line(code: CodeType, number: int) -> None:
        if number == step.line and not reached:
            reached.append(step)
            happens()

    monitoring = sys.monitoring
    monitoring.use_tool_id(TOOL, "steps")
    try:
        monitoring.register_callback(TOOL, monitoring.events.LINE, line)
        monitoring.set_local_events(TOOL, step.code, monitoring.events.LINE)
        yield reached
    finally:
        monitoring.set_local_events(TOOL, step.code, 0)
        monitoring.register_callback(TOOL, monitoring.events.LINE, None)
        monitoring.free_tool_id(TOOL)
