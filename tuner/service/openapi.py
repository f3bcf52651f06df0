"""openapi.json, made from the table of routes and the records it names."""

from __future__ import annotations

import re
from collections.abc import Sequence
from http import HTTPStatus
from typing import Any

import msgspec

from harness.environment import installed
from tuner.service.answers import Error
from tuner.service.names import PATTERN
from tuner.service.routes import JSON, Route

# What every route may answer: a bad name or body, no token, another site. One that takes a body: 413, too long.
ALWAYS = (400, 401, 403)
_REF = "#/components/schemas/{name}"


def document(routes: Sequence[Route]) -> bytes:
    """The OpenAPI 3.1 document of these routes, as JSON."""
    types = _types(routes)
    schemas, components = msgspec.json.schema_components(types, ref_template=_REF)
    known = {id(kind): schema for kind, schema in zip(types, schemas, strict=True)}
    paths: dict[str, dict[str, Any]] = {}
    for route in routes:
        paths.setdefault(route.path, {})[route.method.lower()] = _operation(route, known)
    return msgspec.json.encode(
        {
            "openapi": "3.1.0",
            "info": {"title": "SpecPivot tuning service", "version": installed("specpivot") or "source"},
            "servers": [{"url": "/"}],
            "security": [{}, {"bearer": []}, {"cookie": []}],
            "paths": paths,
            "components": {
                "schemas": components,
                "securitySchemes": {
                    "bearer": {"type": "http", "scheme": "bearer"},
                    "cookie": {"type": "apiKey", "in": "cookie", "name": "specpivot"},
                },
            },
        }
    )


def _types(routes: Sequence[Route]) -> list[Any]:
    found: dict[int, Any] = {id(Error): Error}
    for route in routes:
        for kind in (*route.body, route.answer):
            if not isinstance(kind, dict):
                found[id(kind)] = kind
    return list(found.values())


def _operation(route: Route, known: dict[int, Any]) -> dict[str, Any]:
    answer = route.answer if isinstance(route.answer, dict) else known[id(route.answer)]
    refused = sorted({*ALWAYS, *route.refusals, *((413,) if route.body else ())})
    made: dict[str, Any] = {
        "operationId": route.handler.__name__,
        "summary": route.summary,
        "parameters": _parameters(route),
        "responses": {
            str(route.status): {"description": route.summary, "content": {route.media: {"schema": answer}}},
            **{str(status): _refusal(status, known) for status in refused},
        },
    }
    if route.body:
        forms = [known[id(kind)] for kind in route.body]
        schema = forms[0] if len(forms) == 1 else {"oneOf": forms}
        made["requestBody"] = {"required": True, "content": {JSON: {"schema": schema}}}
    return made


def _parameters(route: Route) -> list[dict[str, Any]]:
    in_path = [
        {"name": name, "in": "path", "required": True, "schema": {"type": "string", "pattern": PATTERN}}
        for name in re.findall(r"{(\w+)}", route.path)
    ]
    in_query = [
        {"name": query.name, "in": "query", "required": query.required, "schema": query.schema} for query in route.query
    ]
    return in_path + in_query


def _refusal(status: int, known: dict[int, Any]) -> dict[str, Any]:
    return {"description": HTTPStatus(status).phrase, "content": {JSON: {"schema": known[id(Error)]}}}
