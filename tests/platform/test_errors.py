"""One base of all errors that a person can mend."""

import ast
from pathlib import Path

import coatcheck
from coatcheck.certificates.authority import CertificateError
from coatcheck.platform.errors import CoatcheckError
from coatcheck.sandbox.limits import LimitError
from coatcheck.settings.explained import SettingsProblem

PACKAGE = Path(coatcheck.__file__).parent


def test_it_says_what_happened_and_what_to_do_next() -> None:
    """The hint is no part of its text: where both are shown, they are two lines."""
    error = CertificateError("the CA's key is gone", "coatcheck ca new")
    assert (str(error), error.message, error.hint) == (
        "the CA's key is gone",
        "the CA's key is gone",
        "coatcheck ca new",
    )
    assert CoatcheckError("alone").hint == ""


def test_each_says_what_a_command_exits_with() -> None:
    """Wrong settings are wrong use; nearly all else could not be done."""
    assert [each("what", "next").exit_code for each in (CertificateError, SettingsProblem)] == [3, 2]


def test_a_limit_is_still_a_value_error() -> None:
    """Callers that check values catch those."""
    assert isinstance(LimitError("too much", "ask for less"), ValueError)


def test_no_other_class_declares_a_hint() -> None:
    """Code that shows errors looks for the base; an error beside it would be shown as a defect of ours."""
    nodes = [node for path in PACKAGE.rglob("*.py") for node in ast.walk(ast.parse(path.read_text()))]
    found = [
        node.name for node in nodes if isinstance(node, ast.ClassDef) and any(map(_sets_hint, ast.walk(node)))
    ]
    assert found == ["CoatcheckError"]


def _sets_hint(node: ast.AST) -> bool:
    return isinstance(node, ast.Attribute) and node.attr == "hint" and isinstance(node.ctx, ast.Store)
