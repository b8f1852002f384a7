"""The OpenAPI 3.1 document, generated from the operations and the models that the router itself uses."""

from collections.abc import Iterable
from typing import Any, Final

from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

import coatcheck
from coatcheck.control.models import (
    APPROVAL_ID,
    HANDLE_ID,
    PORT,
    SANDBOX_ID,
    SESSION_ID,
    SNAPSHOT,
    ErrorAnswer,
    Nothing,
)
from coatcheck.control.operation import Operation
from coatcheck.control.problem import Reason, Refusal

_REF: Final = "#/components/schemas/{model}"
_EVERYWHERE: Final[frozenset[Reason]] = frozenset(
    {Refusal.MALFORMED, Refusal.BROWSER, Refusal.WRONG_HOST, Refusal.INTERNAL, Refusal.BUSY}
)
_WITH_CALLER: Final[frozenset[Reason]] = frozenset({Refusal.UNAUTHENTICATED, Refusal.FORBIDDEN})
_WITH_BODY: Final[frozenset[Reason]] = frozenset({Refusal.TOO_LARGE, Refusal.TOO_SLOW, Refusal.MEDIA_TYPE})
_PARAMETERS: Final = {
    "approval": ("An id from the list of what waits.", APPROVAL_ID),
    "session": ("A session's id.", SESSION_ID),
    "sandbox": ("A sandbox's id.", SANDBOX_ID),
    "jti": ("A handle's id.", HANDLE_ID),
    "snapshot": ("A snapshot's name.", SNAPSHOT),
    "port": ("A TCP port.", PORT),
    "rest": ("Path and query for the server inside, as they are.", "/.*"),
}


def document(operations: Iterable[Operation]) -> dict[str, Any]:
    """The document, as plain JSON values."""
    listed = tuple(operations)
    models: set[type[BaseModel]] = {ErrorAnswer}
    asked = {model for op in listed for model in (op.body, op.query)}
    models |= {op.answer for op in listed if op.answer is not None}
    refs, definitions = models_json_schema(
        [
            *((model, "validation") for model in sorted(asked, key=lambda each: each.__name__)),
            *((model, "serialization") for model in sorted(models, key=lambda each: each.__name__)),
        ],
        ref_template=_REF,
    )
    schemas: dict[object, dict[str, Any]] = {model: schema for (model, _), schema in refs.items()}
    components = definitions["$defs"]
    paths: dict[str, dict[str, Any]] = {}
    for op in listed:
        query = _resolved(schemas[op.query], components)
        paths.setdefault(op.path, {})[op.method.lower()] = _operation(op, schemas, query)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Coatcheck control API",
            "version": coatcheck.__version__,
            "description": "For what runs sandboxes, never for a sandbox. On the Unix socket the user"
            " id is the proof; over TCP a bearer token or a client certificate.",
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "servers": [{"url": "http://localhost", "description": "Any host, on the Unix socket"}],
        "paths": paths,
        "components": {
            "schemas": components,
            "securitySchemes": {
                "token": {"type": "http", "scheme": "bearer"},
                "certificate": {"type": "mutualTLS"},
            },
        },
    }


def reasons_of(op: Operation) -> frozenset[Reason]:
    """Every reason for which `op` can be refused."""
    reasons = _EVERYWHERE | op.reasons
    if op.action is not None:
        reasons |= _WITH_CALLER
    if op.websocket:
        reasons |= {Refusal.UPGRADE_REQUIRED}
    return reasons | _WITH_BODY if op.method == "POST" else reasons


def _operation(op: Operation, schemas: dict[object, dict[str, Any]], query: dict[str, Any]) -> dict[str, Any]:
    made: dict[str, Any] = {
        "operationId": op.name,
        "summary": op.summary,
        # {}: on the Unix socket nothing is sent, the kernel says who asks.
        "security": [] if op.action is None else [{"token": []}, {"certificate": []}, {}],
        "parameters": [*_path_parameters(op), *_query_parameters(query)],
        "responses": _responses(op, schemas),
    }
    if op.passes and op.method in ("POST", "PUT", "PATCH"):
        made["requestBody"] = {"content": {"application/octet-stream": {"schema": {"type": "string"}}}}
    elif op.method == "POST" and op.body is not Nothing:
        required = any(each.is_required() for each in op.body.model_fields.values())
        made["requestBody"] = {
            "required": required,
            "content": {"application/json": {"schema": schemas[op.body]}},
        }
    return made


def _responses(op: Operation, schemas: dict[object, dict[str, Any]]) -> dict[str, Any]:
    other = {"type": "object" if op.content_type == "application/json" else "string"}
    schema = schemas[op.answer] if op.answer is not None else other
    content = {op.content_type: {"schema": schema}}
    done = {"description": op.summary, "content": content}
    if op.websocket:
        done = {"description": "The WebSocket begins."}
    responses: dict[str, Any] = {"101" if op.websocket else str(op.status.value): done}
    by_status: dict[int, list[str]] = {}
    for reason in sorted(reasons_of(op)):
        by_status.setdefault(reason.status.value, []).append(reason)
    for status, reasons in sorted(by_status.items()):
        answer: dict[str, Any] = {"$ref": _REF.format(model=ErrorAnswer.__name__)}
        if op.or_status is not None and op.or_status.value == status:
            answer = {"anyOf": [schema, answer]}
        responses[str(status)] = {
            "description": f"error.reason: {', '.join(reasons)}",
            "content": {"application/json": {"schema": answer}},
        }
    return responses


def _path_parameters(op: Operation) -> list[dict[str, Any]]:
    return [
        {
            "name": name,
            "in": "path",
            "required": True,
            "description": text,
            "schema": {"type": "string", "pattern": f"^{pattern}$"},
        }
        for name, (text, pattern) in _PARAMETERS.items()
        if f"{{{name}}}" in op.path
    ]


def _query_parameters(schema: dict[str, Any]) -> list[dict[str, Any]]:
    required = schema.get("required", ())
    return [
        {"name": name, "in": "query", "required": name in required, "schema": _not_null(each)}
        for name, each in schema.get("properties", {}).items()
    ]


def _not_null(schema: dict[str, Any]) -> dict[str, Any]:
    """A query has no null: leaving the parameter out is how it is not given."""
    options = [each for each in schema.get("anyOf", ()) if each.get("type") != "null"]
    return options[0] if len(options) == 1 else {k: v for k, v in schema.items() if k != "default"}


def _resolved(schema: dict[str, Any], components: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = components[schema["$ref"].rpartition("/")[2]]
    return found
