"""Where the request path can fail: every await, every hook, every call between its parts, from its source.

Nothing here is a list of places: modules are found by their packages, and places by what they are. The same
walk that finds a place rewrites it, so that a test can make it fail (`injection`).
"""

import ast
import builtins
import importlib
import inspect
import re
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from types import ModuleType
from typing import override

import coatcheck

PACKAGES = ("planes", "secrets", "certificates", "telemetry", "state")
"""Whose modules are on the path. `decision` is pure: what calls into it is a place, mutants show the rest."""
MODULES = (
    "request.exchange", "request.call", "request.response", "request.request_edits", "request.known_secrets",
    "request.capacity", "request.revalidate", "request.approvals", "request.shared",
)  # fmt: skip
CALLERS = ("planes.", *MODULES)
"""Modules whose calls are places: the planes and the straight line. Of the others the awaits are."""
OTHER_PROGRAMS: tuple[str, ...] = (
    "planes.stock.script",
    "planes.stock.addon",
    "planes.stock.options",
    "planes.stock.forwarding",
)
OTHER_PROGRAMS += ("planes.stock.session", "planes.configured", "secrets.embedded", "secrets.configured")
OTHER_PROGRAMS += ("planes.dns.resolver", "planes.dns.message")
"""Modules that no request of the daemon passes: stock mitmdump's mode, `coatcheck dev`'s own OpenBao, what
reads the settings before there is a plane, and the resolver, which nothing leaves."""


_METHODS = frozenset(name for each in (dict, set, list, str, bytes, re.Pattern) for name in dir(each))
"""Names of methods that say nothing of whose they are: `get`, `append`."""


class Kind(StrEnum):
    """How a place can fail decides what it is made to do."""

    AWAIT = "await"
    USED_AWAIT = "value of await"
    """Its value is used, so that it can be nonsense."""
    ENTER = "enter"
    LEAVE = "leave"
    """The two awaits of an `async with`."""
    BOUND = "bound"
    """`asyncio.timeout`: it raises, and waits for nothing."""
    CALL = "call"
    USED_CALL = "value of call"
    HOOK = "hook"
    """A method of ours that mitmproxy calls. Nonsense from a layer's is a command that is none."""
    MUTE_HOOK = "hook without an answer"
    HANDLER = "handler"
    """The same in the plane's table of hooks: it may answer with what is to be waited for."""


CALLS = frozenset({Kind.CALL, Kind.USED_CALL})


@dataclass(frozen=True, slots=True)
class Site:
    """One place. Its text names it without line numbers, so that an exemption survives other changes."""

    module: str
    function: str
    kind: Kind
    what: str

    def __str__(self) -> str:
        return f"{self.module}:{self.function} {self.kind}: {self.what}"


@dataclass
class Instrumented:
    """A module's places, by number, and its rewritten source."""

    module: ModuleType
    tree: ast.Module
    sites: list[Site]


def path_modules() -> list[str]:
    """The names of the modules on the path, below `coatcheck`."""
    root = Path(inspect.getfile(coatcheck)).parent
    files = [file for package in PACKAGES for file in sorted((root / package).rglob("*.py"))]
    found = [".".join(file.relative_to(root).with_suffix("").parts) for file in files]
    found = [
        name for name in found if not name.endswith(("__init__", "__main__")) and name not in OTHER_PROGRAMS
    ]
    return [*found, *MODULES]


def instrumented() -> list[Instrumented]:
    """Every module of the path with its places made to ask (`injection.PROBES`)."""
    modules = {name: importlib.import_module(f"coatcheck.{name}") for name in path_modules()}
    trees = {name: ast.parse(inspect.getsource(module)) for name, module in modules.items()}
    ours = _Defined.names_in([*trees.values(), *_decision_trees()])
    hooks = _handlers(trees["planes.mitm.plane"])
    found: list[Instrumented] = []
    count = 0
    for name, tree in trees.items():
        rewriter = _Rewriter(name, ours if name.startswith(CALLERS) else frozenset(), hooks, count)
        rewritten = ast.fix_missing_locations(rewriter.visit(tree))
        found.append(Instrumented(modules[name], rewritten, rewriter.sites))
        count += len(rewriter.sites)
    return found


def _decision_trees() -> list[ast.Module]:
    root = Path(inspect.getfile(coatcheck)).parent
    files = [
        *(root / "decision").glob("*.py"),
        *(root / "sigv4").glob("*.py"),
        *(root / "injectors").glob("*.py"),
    ]
    return [ast.parse(file.read_text()) for file in files]


def _handlers(tree: ast.Module) -> frozenset[str]:
    """The methods in the plane's table of mitmproxy's hooks: `Hook: self.method`."""
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    tables = [
        call.args[0] for call in calls if isinstance(call.func, ast.Name) and call.func.id == "hook_table"
    ]
    (table,) = tables
    assert isinstance(table, ast.Dict)
    return frozenset(value.attr for value in table.values if isinstance(value, ast.Attribute))


@dataclass
class _Defined:
    """Names of functions, and whether any of them answers something that can be nonsense."""

    names: dict[str, bool] = field(default_factory=dict)

    @classmethod
    def names_in(cls, trees: list[ast.Module]) -> dict[str, bool]:
        names: dict[str, bool] = {}
        for tree in trees:
            for node in ast.walk(tree):
                if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                    answers = ast.unparse(node.returns) if node.returns is not None else "None"
                    # Anything is true or false, so no answer is nonsense where a bool is asked for.
                    names[node.name] = names.get(node.name, False) or answers not in ("None", "bool")
        names["emit"] = False  # an attribute that holds a function
        return names


class _Rewriter(ast.NodeTransformer):
    def __init__(self, module: str, ours: object, hooks: frozenset[str], first: int) -> None:
        self.sites: list[Site] = []
        self._module = module
        self._ours: dict[str, bool] = ours if isinstance(ours, dict) else {}
        self._hooks = hooks
        self._first = first
        self._scope: list[str] = []
        self._said: dict[tuple[str, str], int] = {}
        self._unused: set[int] = set()

    def _site(self, kind: Kind, what: str) -> ast.Constant:
        function = ".".join(self._scope)
        what = re.sub(r"\s+", " ", what)[:100]
        key = (function, f"{kind}{what}")
        self._said[key] = self._said.get(key, 0) + 1
        if self._said[key] > 1:
            what += f" ({self._said[key]})"
        self.sites.append(Site(self._module, function, kind, what))
        return ast.Constant(self._first + len(self.sites) - 1)

    # --- scopes -------------------------------------------------------------------------------------

    @override
    def visit_ClassDef(self, node: ast.ClassDef) -> ast.AST:
        self._scope.append(node.name)
        node.body = [self.visit(each) for each in node.body]
        self._scope.pop()
        return node

    @override
    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        return self._function(node)

    @override
    def visit_AsyncFunctionDef(self, node: ast.AsyncFunctionDef) -> ast.AST:
        return self._function(node)

    def _function[F: (ast.FunctionDef, ast.AsyncFunctionDef)](self, node: F) -> F:
        self._scope.append(node.name)
        node.body = [self.visit(each) for each in node.body]
        if self._is_hook(node):
            kind = Kind.HANDLER if node.name in self._hooks else Kind.HOOK
            layer = any(isinstance(each, ast.Yield | ast.YieldFrom) for each in ast.walk(node))
            if kind is Kind.HOOK and not layer and ast.unparse(node.returns or ast.Constant(None)) == "None":
                kind = Kind.MUTE_HOOK
            site = ast.unparse(self._site(kind, node.name))
            answer = "yield" if layer else "return"
            box = ast.parse(f"if (_box := __fault_hook__({site})):\n {answer} _box[0]")
            start = 1 if ast.get_docstring(node) is not None else 0
            node.body[start:start] = box.body
        self._scope.pop()
        return node

    def _is_hook(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
        """What mitmproxy calls: handlers of its hooks, and methods of its layers and handlers."""
        if not self._module.startswith("planes."):
            return False
        named = [each.id for each in node.decorator_list if isinstance(each, ast.Name)]
        state = node.name.startswith("state_")  # an HttpStream's, also where mitmproxy has none of that name
        handler = self._module == "planes.mitm.plane" and node.name in self._hooks
        return handler or state or "override" in named

    # --- places -------------------------------------------------------------------------------------

    @override
    def visit_Expr(self, node: ast.Expr) -> ast.AST:
        self._unused.add(id(node.value))
        return self.generic_visit(node)

    @override
    def visit_Await(self, node: ast.Await) -> ast.AST:
        kind = Kind.AWAIT if id(node) in self._unused else Kind.USED_AWAIT
        site = self._site(kind, ast.unparse(node.value))
        if isinstance(node.value, ast.Call):  # making the coroutine is no place of its own
            self.generic_visit(node.value)
        else:
            node.value = self.visit(node.value)
        node.value = _probe("await", site, node.value)
        return node

    @override
    def visit_AsyncWith(self, node: ast.AsyncWith) -> ast.AST:
        for item in node.items:
            what = ast.unparse(item.context_expr)
            bound = what.startswith("asyncio.timeout(")
            enter = self._site(Kind.BOUND if bound else Kind.ENTER, what)
            leave = self._site(Kind.BOUND if bound else Kind.LEAVE, what)
            item.context_expr = _probe("within", enter, leave, self.visit(item.context_expr))
        node.body = [self.visit(each) for each in node.body]
        return node

    @override
    def visit_AsyncFor(self, node: ast.AsyncFor) -> ast.AST:
        raise NotImplementedError("the path has no `async for` so far: teach this rewriter to make one fail")

    @override
    def visit_Call(self, node: ast.Call) -> ast.AST:
        method = isinstance(node.func, ast.Attribute)
        name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        foreign = name in _METHODS or name.startswith("__") if method else hasattr(builtins, name)
        if name not in self._ours or foreign:
            return self.generic_visit(node)
        used = self._ours[name] and id(node) not in self._unused
        site = self._site(Kind.USED_CALL if used else Kind.CALL, ast.unparse(node.func))
        self.generic_visit(node)
        node.args = [site, node.func, *node.args]
        node.func = ast.Name("__fault_call__", ast.Load())
        return node


def _probe(name: str, *args: ast.expr) -> ast.Call:
    return ast.Call(ast.Name(f"__fault_{name}__", ast.Load()), list(args), [])
