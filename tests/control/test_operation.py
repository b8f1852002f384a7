"""The table that router and document share."""

import re

from coatcheck.control.dispatch import OPERATIONS


def test_each_operation_is_there_once() -> None:
    """By name, and by method and path."""
    assert len({op.name for op in OPERATIONS}) == len(OPERATIONS)
    assert len({(op.method, op.path) for op in OPERATIONS}) == len(OPERATIONS)


def test_what_changes_something_needs_a_caller() -> None:
    """Only reading may be open, and only what tells nothing about anybody."""
    assert all(op.action is not None for op in OPERATIONS if op.method != "GET")
    assert {op.path for op in OPERATIONS if op.action is None} == {"/healthz", "/readyz", "/v1/openapi.json"}


def test_paths_hold_ids_only() -> None:
    """What else a client says goes into a query or a body, where it is validated; and to a server inside."""
    names = {name for op in OPERATIONS for name in re.findall(r"\{(\w+)\}", op.path)}
    assert names == {"session", "jti", "sandbox", "snapshot", "approval", "port", "rest"}
    assert all(op.passes for op in OPERATIONS if "{rest}" in op.path)
