"""Findings as SARIF 2.1.0, which code hosts show in the lines of a pull request."""

import hashlib
from collections.abc import Iterable
from pathlib import PurePath
from typing import Any
from urllib.parse import quote

from coatcheck.policy.file.codes import EXPLANATIONS, Code
from coatcheck.policy.file.problem import Level, Problem
from coatcheck.policy.lint.lint import Linted

SCHEMA = "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json"


def sarif(findings: Iterable[Linted], version: str) -> dict[str, Any]:
    """One run of the linter of Coatcheck `version`. Accepted findings are in it, as suppressed."""
    codes = list(Code)
    return {
        "$schema": SCHEMA,
        "version": "2.1.0",
        "runs": [
            {
                "tool": {
                    "driver": {
                        "name": "coatcheck",
                        "semanticVersion": version,
                        "rules": [_rule(code) for code in codes],
                    }
                },
                "columnKind": "unicodeCodePoints",
                "results": [_result(linted, codes.index(linted.code)) for linted in findings],
            }
        ],
    }


def _rule(code: Code) -> dict[str, Any]:
    said = EXPLANATIONS[code]
    return {
        "id": code.value,
        "shortDescription": {"text": said.title},
        "fullDescription": {"text": said.why},
        "help": {"text": f"{said.why} {said.remedy}"},
        "defaultConfiguration": {"level": "error" if code is Code.NOT_LOADED else "warning"},
    }


def _result(linted: Linted, index: int) -> dict[str, Any]:
    problem = linted.problem
    hint = f"; {problem.instead}" if problem.instead else ""
    result: dict[str, Any] = {
        "ruleId": linted.code.value,
        "ruleIndex": index,
        "level": "error" if problem.level is Level.ERROR else "warning",
        "message": {"text": f"{problem.message}{hint}"},
        "locations": [_location(problem)],
        # Without the line: a finding that only moved is not a new one.
        "partialFingerprints": {"coatcheckFinding/v1": _fingerprint(linted)},
    }
    if linted.accepted:
        result["suppressions"] = [
            {"kind": "inSource", "status": "accepted", "justification": linted.accepted}
        ]
    return result


def _location(problem: Problem) -> dict[str, Any]:
    path = PurePath(problem.file)
    uri = path.as_uri() if path.is_absolute() else quote(path.as_posix())
    # Line 0 is the file as a whole, which SARIF says by its first line.
    region = {"startLine": max(problem.line, 1), "startColumn": max(problem.column, 1)}
    return {"physicalLocation": {"artifactLocation": {"uri": uri}, "region": region}}


def _fingerprint(linted: Linted) -> str:
    said = f"{linted.code}\n{linted.problem.file}\n{linted.problem.message}"
    return hashlib.sha256(said.encode()).hexdigest()
