"""The page of the job file: every key with its values and default, and what goes with which mode.

The last is asked of the code: each key is tried with each mode, and what the job file's own check says is shown.
"""

import json
from collections.abc import Iterator, Mapping
from typing import Any

from reference.job_file_words import WORDS
from reference.markdown import code, page, table

LEAD = """A job file is YAML; the same keys are the body of `POST /api/v1/jobs` and what `client.submit` takes.
Unknown keys are errors. `ringleader validate FILE` checks one, and with `-o json` shows every key with its value.
Only `name` and `entrypoint` have to be there."""
MODES: dict[str, dict[str, Any]] = {
    "ring": {"intra_node": "ring", "inter_node": "ring"},
    "servers": {"intra_node": "parameter_server", "inter_node": "parameter_server"},
    "servers, ring inside": {"intra_node": "ring", "inter_node": "parameter_server"},
    "local_sgd": {"intra_node": "local_sgd", "inter_node": "local_sgd"},
    "token_ring": {"intra_node": "token_ring", "inter_node": "token_ring"},
}
TRIED: tuple[dict[str, Any], ...] = (
    *({"algorithm": name} for name in ("direct", "native", "ring", "two_level")),
    *({"codec": name} for name in ("bf16", "int8")),
    {"reproducible": True},
    {"reproducible": False},
    {"servers": 2},
    {"server_backups": 1},
    {"consistency": "sync"},
    {"consistency": "ssp", "staleness": 0},
    {"consistency": "ssp", "staleness": 2},
    {"consistency": "async"},
    {"staleness": 1},
    {"backup_workers": 1},
    {"inner_steps": 8},
    {"outer": "nesterov"},
    {"tokens": 8},
)
"""Keys of `sync` that are tried with every mode."""
PRECISIONS = ("bf16", "fp16")


def job_file_page() -> str:
    from ringleader.spec import JobSpec

    schema = JobSpec.model_json_schema()
    parts = [f"## {name}\n\n{_keys(schema, name)}" for name in _parts(schema)]
    return page("Job file", LEAD, "## Keys\n\n" + _keys(schema), *parts, _matrix(), _levels())


def keys() -> list[str]:
    """Every key, with a dot before those of a part."""
    from ringleader.spec import JobSpec

    schema = JobSpec.model_json_schema()
    inner = [f"{part}.{key}" for part in _parts(schema) for key in _shape(schema, part)["properties"]]
    return [*schema["properties"], *inner]


def accepted(sync: Mapping[str, Any], **more: Any) -> bool:
    """Whether the job file's check takes these keys."""
    from ringleader.errors import SpecInvalid
    from ringleader.spec import JobSpec

    batch, workers = {"global_size": 64, "logical_shards": 8}, {"max": 4}
    try:
        JobSpec.parse(
            {"name": "a", "entrypoint": "a:b", "batch": batch, "workers": workers, "sync": dict(sync), **more}
        )
    except SpecInvalid:
        return False
    return True


def _parts(schema: Mapping[str, Any]) -> list[str]:
    """Keys that have keys of their own."""
    return [name for name, one in schema["properties"].items() if "$ref" in one]


def _shape(schema: Mapping[str, Any], part: str) -> Mapping[str, Any]:
    if not part:
        return schema
    shape: Mapping[str, Any] = schema["$defs"][schema["properties"][part]["$ref"].rpartition("/")[2]]
    return shape


def _keys(schema: Mapping[str, Any], part: str = "") -> str:
    shape = _shape(schema, part)
    rows = []
    for key, one in shape["properties"].items():
        path = f"{part}.{key}" if part else key
        default = "needed" if key in shape.get("required", ()) else code(_yaml(one))
        if "$ref" in one:
            default = "its keys' own"
        rows.append((code(key), _values(one), default, WORDS.get(path, "")))
    return table(("key", "values", "default", "what it says"), rows)


def _yaml(one: Mapping[str, Any]) -> str:
    return json.dumps(one["default"])


def _values(one: Mapping[str, Any]) -> str:
    """The values that a key takes, in words."""
    if "$ref" in one:
        return "keys"
    if "anyOf" in one:
        return ", or ".join(_values(part) for part in one["anyOf"])
    if "enum" in one:
        return ", ".join(code(str(value)) for value in one["enum"])
    kind = one.get("type")
    if kind == "array":
        return _list_of(one["items"])
    if kind in ("integer", "number"):
        return f"{'whole number' if kind == 'integer' else 'number'}{_bounds(one)}"
    words = {
        "string": "text",
        "boolean": "`true`, `false`",
        "null": "`null`",
        "object": "names with values",
    }
    return words.get(str(kind), "any value")


def _list_of(item: Mapping[str, Any]) -> str:
    if item.get("type") == "array":
        return "list of pairs: " + ", ".join(map(_values, item["prefixItems"]))
    return "list of mappings" if "$ref" in item else "list of text"


def _bounds(one: Mapping[str, Any]) -> str:
    least, most = one.get("minimum"), one.get("maximum")
    if "exclusiveMaximum" in one:
        return f" from {least}, below 2^{int(one['exclusiveMaximum']).bit_length() - 1}"
    if most is not None:
        return f" from {least} to {most}"
    return f" from {least}" if least is not None else ""


def _matrix() -> str:
    rows = [
        [code(_shown(keys)), *(_mark(accepted({**mode, **keys})) for mode in MODES.values())]
        for keys in TRIED
    ]
    rows += [
        [code(f"precision: {name}"), *(_mark(accepted(mode, precision=name)) for mode in MODES.values())]
        for name in PRECISIONS
    ]
    grows = {"global_size": 64, "logical_shards": 8, "schedule": [[500, 128]]}
    rows.append([code("batch.schedule"), *(_mark(accepted(mode, batch=grows)) for mode in MODES.values())])
    rows.append(["same bits by default", *(_mark(_same_bits(mode)) for mode in MODES.values())])
    modes = "\n".join(f"- {code(name)}: `sync: {{{_shown(keys)}}}`" for name, keys in MODES.items())
    return "\n\n".join(
        (
            "## What goes with which mode",
            "Keys below `sync`, each tried with each mode. What does not go together is refused when the job is "
            "submitted, naming the key and what is allowed instead.",
            table(("key", *(code(name) for name in MODES)), rows),
            "The modes of the table:",
            modes,
        )
    )


def _levels() -> str:
    """Which mode goes between nodes with which inside them."""
    from typing import get_args

    from ringleader.spec.sync_keys import Architecture

    names = get_args(Architecture)
    rows = [
        [code(inter), *(_mark(accepted({"inter_node": inter, "intra_node": intra})) for intra in names)]
        for inter in names
    ]
    return "\n\n".join(
        (
            "## Modes between and inside nodes",
            "Down: `inter_node`. Across: `intra_node`. `sync: X` is short for both.",
            table(("inter_node", *map(code, names)), rows),
        )
    )


def _same_bits(mode: Mapping[str, Any]) -> bool:
    from ringleader.spec.sync import Sync

    return Sync(**mode).same_bits


def _shown(keys: Mapping[str, Any]) -> str:
    return ", ".join(f"{key}: {json.dumps(value).strip(chr(34))}" for key, value in keys.items())


def _mark(holds: bool) -> str:
    return "yes" if holds else "–"


def undescribed() -> Iterator[str]:
    """Keys without words, and words without a key."""
    yield from sorted(set(keys()) ^ WORDS.keys())
