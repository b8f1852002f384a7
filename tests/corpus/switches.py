"""Checks, switched off in the running program: a piece of a function's source is replaced, and put back."""

import __future__

import ast
import importlib
import inspect
import sys
import textwrap
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from types import CodeType, FunctionType
from typing import Any
from unittest import mock

from coatcheck.policy import parsing
from coatcheck.policy.file.loading import parse_here
from tests.corpus.schema import Check, Off


class Stale(Exception):
    """The source has changed, and the edit must, too."""


@contextmanager
def off(check: Check) -> Iterator[None]:
    """The program without `check`, for as long as the block lasts."""
    with ExitStack() as stack:
        # The daemon's parser is another process, in which every check is on.
        stack.enter_context(mock.patch.object(parsing, "_elsewhere", parse_here))
        for where in dict.fromkeys(each.within for each in check.off):
            edits = [each for each in check.off if each.within == where]
            for each in edits if where is None else ():
                stack.enter_context(_set(each))
            if where is not None:
                stack.enter_context(_edited(where, edits))
        _forget()
        try:
            yield
        finally:
            stack.close()
            _forget()


@contextmanager
def bounds(small: Mapping[str, Any]) -> Iterator[None]:
    """The program with other bounds, by `module:NAME`."""
    with ExitStack() as stack:
        for name, value in small.items():
            stack.enter_context(_set(Off(set=name, to=repr(value))))
        yield


@contextmanager
def _edited(where: str, edits: list[Off]) -> Iterator[None]:
    function = _function(where)
    before = function.__code__
    function.__code__ = _compiled(function, where, edits)
    try:
        yield
    finally:
        function.__code__ = before


def _function(where: str) -> FunctionType:
    module, _, name = where.partition(":")
    found: Any = importlib.import_module(module)
    for part in name.split("."):
        try:
            found = inspect.getattr_static(found, part)
        except AttributeError:  # or else it would look as if the program failed without its check
            raise Stale(f"{where} is not there any more") from None
    found = getattr(found, "fget", None) or getattr(found, "__func__", None) or found
    found = inspect.unwrap(found)
    if not isinstance(found, FunctionType):
        raise TypeError(f"{where} is no function")
    return found


def _compiled(function: FunctionType, where: str, edits: list[Off]) -> CodeType:
    source = textwrap.dedent(inspect.getsource(function))
    for edit in edits:
        if (count := source.count(edit.replace)) != 1:
            raise Stale(f"{where}: {edit.replace!r} stands there {count} times, not once")
        source = source.replace(edit.replace, edit.by)
    tree = ast.parse(source)
    definition = tree.body[0]
    assert isinstance(definition, ast.FunctionDef | ast.AsyncFunctionDef)
    definition.decorator_list = []
    free = function.__code__.co_freevars
    if free:  # a closure keeps its cells: the new code must have the same
        outer = ast.parse(f"def outer({', '.join(free)}):\n    pass\n    return {definition.name}")
        outer.body[0].body[0] = definition  # type: ignore[attr-defined]
        tree = outer
    future = function.__code__.co_flags & __future__.annotations.compiler_flag
    module = compile(ast.fix_missing_locations(tree), f"<{where} without a check>", "exec", future, True)
    made = _code_of(module, definition.name)
    if made.co_freevars != free:
        raise Stale(f"{where}: the edit changes what it closes over")
    return made


def _code_of(code: CodeType, name: str) -> CodeType:
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            if constant.co_name == name:
                return constant
            if constant.co_name == "outer":
                return _code_of(constant, name)
    raise Stale(name)


@contextmanager
def _set(edit: Off) -> Iterator[None]:
    """Every module of ours that imported the name has the new value."""
    module, _, name = str(edit.set).partition(":")
    owner = importlib.import_module(module)
    before = getattr(owner, name)
    value = eval(edit.to, vars(owner).copy())
    holders = [each for each in _ours() if vars(each).get(name) is before]
    for each in holders:
        setattr(each, name, value)
    try:
        yield
    finally:
        for each in holders:
            setattr(each, name, before)


def _forget() -> None:
    """What was cached while a check was on, or off, is no answer any more."""
    for module in _ours():
        for value in tuple(vars(module).values()):
            clear: Callable[[], None] | None = getattr(value, "cache_clear", None)
            if callable(clear):
                clear()


def _ours() -> list[Any]:
    return [each for name, each in tuple(sys.modules.items()) if name.partition(".")[0] == "coatcheck"]
