"""The page of the REST API, from the OpenAPI document that is committed."""

import json
from collections.abc import Iterator, Mapping
from typing import Any

from reference.markdown import code, page, prose, sentence, table
from reference.sources import ROOT

DOCUMENT = ROOT / "api" / "openapi.json"
LEAD = """Every request needs `Authorization: Bearer TOKEN`, or the session cookie of a log-in. The contract itself
is served at `/api/v1/openapi.json`. Errors are `application/problem+json` with a stable
[code](codes.md#codes-of-problems); besides those listed, 401 answers who has no credential, 403 who lacks the right,
and 429 who asks too often."""
ELSEWHERE = frozenset(
    {"JobSpec", "Workers", "Servers", "Autoscale", "Batch", "Sync", "Data", "Checkpoint", "Policy", "Debug"}
)
"""Shapes of the job file, which has a page of its own."""
EVERYWHERE = frozenset({"401", "403", "429"})
Node = Mapping[str, Any]


def rest_page() -> str:
    document = json.loads(DOCUMENT.read_text(encoding="utf-8"))
    sections: dict[str, list[str]] = {}
    for method, path, operation in operations(document):
        sections.setdefault(operation.get("tags", ["other"])[0], []).append(
            _operation(method, path, operation)
        )
    shown = [f"## {name.capitalize()}\n\n" + "\n\n".join(parts) for name, parts in sorted(sections.items())]
    return page("REST API", LEAD, *shown, _shapes(document))


def operations(document: Node) -> Iterator[tuple[str, str, Node]]:
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            yield method.upper(), path, operation


def _operation(method: str, path: str, operation: Node) -> str:
    words = "\n\n".join(prose(part) for part in operation["description"].split("\n\n"))
    rows = [
        (code(one["name"]), one["in"], _type(one["schema"]), prose(sentence(one.get("description", ""))))
        for one in operation.get("parameters", ())
    ]
    parts = [f"### {method} {path}", words, table(("parameter", "in", "values", "what it says"), rows)]
    if body := _content(operation.get("requestBody", {})):
        parts.append(f"Body: {body}.")
    answers = [
        (code(status), prose(sentence(answer["description"])), _content(answer))
        for status, answer in operation["responses"].items()
        if status not in EVERYWHERE
    ]
    parts.append(table(("answer", "when", "body"), answers))
    return "\n\n".join(part for part in parts if part)


def _content(node: Node) -> str:
    """The body of a request or an answer: its shape, and its kind where that is not JSON."""
    found = []
    for kind, one in node.get("content", {}).items():
        shape = _type(one.get("schema", {}))
        found.append(
            shape if kind in ("application/json", "application/problem+json") else f"{shape} as `{kind}`"
        )
    return " or ".join(found)


def _shapes(document: Node) -> str:
    shown = []
    for name, shape in sorted(document["components"]["schemas"].items()):
        if name in ELSEWHERE:
            continue
        words = shape.get("description", "").split("\n\nAttributes:")[0]
        rows = [
            (code(key), _type(one), "" if key in shape.get("required", ()) else _default(one))
            for key, one in shape.get("properties", {}).items()
        ]
        values = ", ".join(code(str(value)) for value in shape.get("enum", ()))
        parts = (
            f"### {name}",
            prose(words),
            values and f"One of {values}.",
            table(("key", "values", "default"), rows),
        )
        shown.append("\n\n".join(part for part in parts if part))
    return "## Shapes\n\n" + "\n\n".join(shown)


def _default(one: Node) -> str:
    return code(json.dumps(one["default"], ensure_ascii=False)) if "default" in one else "may be left out"


def _type(schema: Node) -> str:  # noqa: PLR0911 - one line per kind of schema
    """The values that a schema admits, with links to shapes."""
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        return f"[{name}](job-file.md)" if name in ELSEWHERE else f"[{name}](#{name.lower()})"
    for key in ("anyOf", "oneOf", "allOf"):
        if key in schema:
            return ", or ".join(dict.fromkeys(_type(one) for one in schema[key]))
    if "enum" in schema:
        return ", ".join(code(str(value)) for value in schema["enum"])
    if "const" in schema:
        return code(str(schema["const"]))
    kind = schema.get("type")
    if kind == "array":
        return f"list of {_type(schema.get('items', {}))}"
    if kind == "object":
        inner = schema.get("additionalProperties")
        return f"names with {_type(inner)}" if isinstance(inner, dict) and inner else "names with values"
    return {
        "integer": "whole number",
        "number": "number",
        "string": {"date-time": "time", "binary": "bytes"}.get(schema.get("format", ""), "text"),
        "boolean": "true or false",
        "null": "null",
    }.get(str(kind), "any value")
