"""An import-linter contract: no file of the package imports itself by way of others (see pyproject.toml).

Its own `acyclic_siblings` compares folders, and passes over a folder's `__init__` that imports what is in it.
Imports within functions and under TYPE_CHECKING count: they delay a cycle, and do not open it.
"""

from graphlib import CycleError, TopologicalSorter

from grimp import ImportGraph
from importlinter import Contract, ContractCheck, output


class NoCycles(Contract):
    """Of all files; it has no exceptions."""

    type_name = "no_cycles"

    def check(self, graph: ImportGraph, verbose: bool) -> ContractCheck:
        cycle = cycle_in(graph)
        return ContractCheck(kept=not cycle, metadata={"cycle": cycle})

    def render_broken_contract(self, check: ContractCheck) -> None:
        output.print_error(" -> ".join(check.metadata["cycle"]))


def cycle_in(graph: ImportGraph) -> list[str]:
    """One cycle, from a module to itself in the order of its imports; empty if there is none."""
    imported = {module: graph.find_modules_directly_imported_by(module) for module in graph.modules}
    try:
        TopologicalSorter(imported).prepare()
    except CycleError as found:
        return list(reversed(found.args[1]))
    return []
