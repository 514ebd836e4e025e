"""What a gateway takes and answers, as an OpenAPI 3.1 document, made from the tables by which it is checked.

Bodies are those of ``fields``. Answers of models are the engine's bytes: what stands here is what every engine's answer has. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from rollout.inference.gateway.rules.fields import (
    BATCHED,
    FIELDS,
    NAME_CHARACTERS_MAX,
    PROMPTS,
)
from rollout.inference.gateway.rules.together import TOGETHER

Document = dict[str, Any]

REF = "#/components/schemas/{name}"
_STRING: Document = {"type": "string"}
_OBJECT: Document = {"type": "object"}
_REQUEST_ID: Document = {"x-request-id": {"required": True, "schema": _STRING}}
_VERSION: Document = {
    "X-Rollout-Model-Version": {"required": True, "schema": _STRING},
    "X-Rollout-Weights-Digest": {"required": True, "schema": _STRING},
}
_RETRY: Document = {"Retry-After": {"schema": {"type": "integer", "minimum": 1, "maximum": 60}}}
REFUSALS: Mapping[int, str] = {
    400: "A body, a field or a value that is not taken; ``param`` names it.",
    401: "No key, or one that is not valid.",
    404: "No such model, file or batch, for this key.",
    408: "The body did not come in time.",
    413: "Larger than is taken.",
    422: "The engine refuses it.",
    429: "This key's own limits; see ``Retry-After``.",
    502: "The engine failed.",
    503: "Not now: full, ending, or no engine is ready; see ``Retry-After``.",
    504: "Not answered in time.",
}
ERROR: Document = {
    "type": "object",
    "required": ["error"],
    "properties": {
        "error": {
            "type": "object",
            "required": ["message", "type", "param", "code"],
            "properties": {
                "message": _STRING,
                "type": _STRING,
                "param": {"type": ["string", "null"]},
                "code": {"type": ["string", "null"]},
            },
            "additionalProperties": False,
        }
    },
}
_STREAMED = {
    "/v1/chat/completions": "Events of ``chat.completion.chunk``, then ``[DONE]``.",
    "/v1/completions": "Events of ``text_completion``, then ``[DONE]``.",
    "/v1/responses": "Named events, ``response.completed`` last.",
}
_LISTED: Document = {
    "type": "object",
    "required": ["object", "data"],
    "properties": {"object": {"const": "list"}, "data": {"type": "array", "items": _OBJECT}},
}
_MODEL: Document = {
    "type": "object",
    "required": ["id", "object", "created", "owned_by", "root", "digest"],
    "properties": {
        "id": _STRING,
        "object": {"const": "model"},
        "created": {"type": "integer"},
        "owned_by": _STRING,
        "root": {**_STRING, "description": "The version that the name means now."},
        "digest": {**_STRING, "description": "Of its weights."},
        "max_model_len": {"type": "integer"},
    },
}
_STORED: Document = {
    "type": "object",
    "required": ["id", "object"],
    "properties": {"id": _STRING, "object": _STRING},
}
_ID: Document = {"name": "id", "in": "path", "required": True, "schema": _STRING}
_AFTER: Document = {"name": "after", "in": "query", "schema": _STRING}
_BATCH: Document = {
    "type": "object",
    "required": ["input_file_id", "endpoint", "completion_window"],
    "properties": {
        "input_file_id": _STRING,
        "endpoint": {"enum": list(BATCHED)},
        "completion_window": {"const": "24h"},
        "metadata": {
            "type": ["object", "null"],
            "maxProperties": 16,
            "propertyNames": {"maxLength": 64},
            "additionalProperties": {"type": "string", "maxLength": 512},
        },
    },
    "additionalProperties": False,
}
_UPLOAD: Document = {
    "type": "object",
    "required": ["file", "purpose"],
    "properties": {
        "file": {"type": "string", "format": "binary", "minLength": 1},
        "purpose": {"const": "batch"},
    },
    "additionalProperties": False,
}


def build_description(*, files: bool, is_open: bool) -> Document:
    """The document of one gateway. ``files``: it keeps files and batches; ``is_open``: it asks for no key."""
    bodies, components = _bodies()
    paths: Document = {path: {"post": _of_model(path, bodies[path])} for path in FIELDS}
    paths |= _of_names() | (_of_files() if files else {}) | _of_anybody()
    return {
        "openapi": "3.1.0",
        "info": {"title": "rollout gateway", "version": "v1"},
        "paths": paths,
        "components": {
            "schemas": {"Error": ERROR, **components},
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
        },
        "security": [] if is_open else [{"key": []}],
    }


def _bodies() -> tuple[dict[str, Document], Document]:
    """The schema of each path's body, and what they refer to."""
    kinds = [one | None for fields in FIELDS.values() for one in fields.values()]
    schemas, components = msgspec.json.schema_components(kinds, ref_template=REF)
    found = iter(schemas)
    bodies = {
        path: _body(path, {name: next(found) for name in fields}) for path, fields in FIELDS.items()
    }
    return bodies, components


def _body(path: str, properties: dict[str, Document]) -> Document:
    required = sorted({"model", PROMPTS.get(path, "model")})
    body: Document = {
        "type": "object",
        "properties": properties | {name: _never_null(properties[name]) for name in required},
        "required": required,
        "additionalProperties": False,
    }
    return body | ({"allOf": [TOGETHER[path]]} if path in TOGETHER else {})


def _never_null(schema: Document) -> Document:
    kinds = [one for one in schema.get("anyOf", []) if one != {"type": "null"}]
    return {"anyOf": kinds} if kinds else schema


def _of_model(path: str, body: Document) -> Document:
    content: Document = {"application/json": {"schema": _OBJECT}}
    if path in _STREAMED:
        content["text/event-stream"] = {"schema": {"description": _STREAMED[path]}}
    answer = {
        "description": "The engine's answer, of the version that the headers name.",
        "headers": _REQUEST_ID | _VERSION,
        "content": content,
    }
    session = {"name": "X-Session-Id", "in": "header", "schema": _STRING}
    return {
        "operationId": path.strip("/").replace("/", "_"),
        "parameters": [session],
        "requestBody": {"required": True, "content": {"application/json": {"schema": body}}},
        "responses": {"200": answer, **_refusals(*REFUSALS)},
    }


def _of_names() -> Document:
    of_name = {**_STRING, "minLength": 1, "maxLength": NAME_CHARACTERS_MAX}
    name: Document = {"name": "name", "in": "path", "required": True, "schema": of_name}
    shown = _json(_MODEL, _REQUEST_ID | _VERSION)
    return {
        "/v1/models": {"get": _operation("list_models", {"200": _json(_LISTED)}, 401)},
        "/v1/models/{name}": {
            "get": _operation("show_model", {"200": shown}, 400, 401, 404, parameters=[name])
        },
    }


def _of_files() -> Document:
    stored, listed = {"200": _json(_STORED)}, {"200": _json(_LISTED)}
    form = {"multipart/form-data": {"schema": _UPLOAD}}
    content = {"application/octet-stream": {"schema": {**_STRING, "format": "binary"}}}
    sent = {"200": {"description": "The file.", "headers": _REQUEST_ID, "content": content}}
    order = {"name": "order", "in": "query", "schema": {"enum": ["asc", "desc"]}}
    purpose = {"name": "purpose", "in": "query", "schema": _STRING}
    of_one = [_ID]
    common = (400, 401, 503)
    return {
        "/v1/files": {
            "post": _operation("upload_file", stored, *common, 408, 413, body=form),
            "get": _operation(
                "list_files",
                listed,
                *common,
                404,
                parameters=[purpose, order, _AFTER, _limit(10_000)],
            ),
        },
        "/v1/files/{id}": {
            "get": _operation("show_file", stored, *common, 404, parameters=of_one),
            "delete": _operation("delete_file", stored, *common, 404, parameters=of_one),
        },
        "/v1/files/{id}/content": {
            "get": _operation("read_file", sent, *common, 404, parameters=of_one)
        },
        "/v1/batches": {
            "post": _operation(
                *("begin_batch", stored, *common, 404, 408, 413, 429),
                body={"application/json": {"schema": _BATCH}},
            ),
            "get": _operation(
                "list_batches", listed, *common, 404, parameters=[_AFTER, _limit(100)]
            ),
        },
        "/v1/batches/{id}": {
            "get": _operation("show_batch", stored, *common, 404, parameters=of_one)
        },
        "/v1/batches/{id}/cancel": {
            "post": _operation("cancel_batch", stored, *common, 404, parameters=of_one)
        },
    }


def _of_anybody() -> Document:
    """What needs no key."""
    text = {"text/plain": {"schema": _STRING}}
    lives = {"description": "It does.", "content": text}
    described = {"description": "This document.", "content": {"application/json": {"schema": {}}}}
    found = {
        "/healthz": {"200": lives},
        "/readyz": {"200": lives, "503": {"description": "No engine answers.", "content": text}},
        "/metrics": {"200": lives},
        "/openapi.json": {"200": described},
    }
    return {
        path: {
            "get": {"operationId": path.strip("/"), "responses": answers, "security": []},
        }
        for path, answers in found.items()
    }


def _limit(most: int) -> Document:
    schema = {"type": "integer", "minimum": 1, "maximum": most}
    return {"name": "limit", "in": "query", "schema": schema}


def _operation(
    name: str,
    answers: Document,
    *refusals: int,
    parameters: list[Document] | None = None,
    body: Document | None = None,
) -> Document:
    found: Document = {"operationId": name, "responses": {**answers, **_refusals(*refusals)}}
    if parameters:
        found["parameters"] = parameters
    if body:
        found["requestBody"] = {"required": True, "content": body}
    return found


def _json(schema: Document, headers: Document = _REQUEST_ID) -> Document:
    content = {"application/json": {"schema": schema}}
    return {"description": "As OpenAI's.", "headers": headers, "content": content}


def _refusals(*codes: int) -> Document:
    content = {"application/json": {"schema": {"$ref": REF.format(name="Error")}}}
    return {
        str(code): {
            "description": REFUSALS[code],
            "headers": _REQUEST_ID | (_RETRY if code in {429, 503} else {}),
            "content": content,
        }
        for code in codes
    }
