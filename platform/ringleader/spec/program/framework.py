"""The `framework:` of a job: the library that its entrypoint is written for, and who runs it; and the keys without
meaning where that is another library's engine: in a hosted job."""

import json
import shlex
from collections.abc import Mapping
from pathlib import PurePosixPath
from typing import Any, Literal

from ringleader.spec.batch import Batch
from ringleader.spec.data import Data
from ringleader.spec.part import Impossible, SpecPart
from ringleader.spec.sync import Sync

Framework = Literal["native", "ray_train", "ray_train_hosted", "torchrun", "auto"]
HOSTED: frozenset[Framework] = frozenset({"ray_train_hosted", "torchrun"})
"""Frameworks whose own engine runs the program, under our scheduler."""
ON_NODES: frozenset[Framework] = frozenset({"native", "ray_train"})
"""What a node can find `auto` to be: its function was loaded for a session, natively or adopted."""
CHOSEN = "framework.chosen"
"""The event of a worker that has found what `auto` stands for."""
FUNCTION_FORM = "module:function, for example ringleader_jobs.digits:train"
SCRIPT_FORM = "a script of the working directory with its arguments, for example train.py --epochs 10"
MAX_ENTRYPOINT = 8192
WHY_OTHER_BITS = (
    "with framework: {framework} the program trains by itself: whoever computes what, the bits are its own affair, and "
    "after a loss or a resize it starts anew from what it has saved"
)
_OWN_EXCHANGE = "the program exchanges gradients by itself"
_OWN_ROWS = "the program makes its batches by itself"
_OWN_STATE = "the program saves and reads its state by itself"
_OWN_STEPS = "the program's steps are its own affair"
UNUSED: dict[str, str] = {
    "sync": _OWN_EXCHANGE,
    "servers": _OWN_EXCHANGE,
    "precision": _OWN_EXCHANGE,
    "batch.global_size": _OWN_ROWS,
    "batch.schedule": _OWN_ROWS,
    "data": _OWN_ROWS,
    "seed": "the program draws its random numbers by itself",
    "checkpoint.every_steps": _OWN_STATE,
    "checkpoint.every_s": _OWN_STATE,
    "checkpoint.keep": _OWN_STATE,
    "init_from": _OWN_STATE,
    "init_optimizers": _OWN_STATE,
    "policy": _OWN_STEPS,
    "debug.ledger": _OWN_STEPS,
    "debug.trace": _OWN_STEPS,
    "register": _OWN_STATE,
}
"""Keys without meaning for a hosted job, and why. `batch.logical_shards` has one: the most workers of a resize."""

AS_STORED: dict[str, SpecPart] = {"data": Data(order="shuffled")}
"""Values of such keys that mean nothing either."""
RAY_UNUSED: dict[str, str] = {
    "workers.gpus": "Ray Train's workers reserve nothing: the job's workers hold the places, and devices with them",
    "env.PYTHONPATH": "Ray brings the working directory to its workers, and imports from there",
}
"""Those without meaning for a hosted Ray Train job alone."""
MOST_VARIABLE_BYTES = 120_000
"""The most bytes of a variable of a hosted program: Linux starts none with one of 128 KiB, its name counted."""


def is_script(entrypoint: str) -> bool:
    """Whether an entrypoint is a script of the working directory with its arguments."""
    # Before it is split: that takes time with the square of a word's length.
    if len(entrypoint) > MAX_ENTRYPOINT or not entrypoint.isprintable():
        return False
    try:
        words = shlex.split(entrypoint)
    except ValueError:  # a quotation that does not end
        return False
    if not words:
        return False
    script = PurePosixPath(words[0])
    return script.suffix == ".py" and not script.is_absolute() and ".." not in script.parts


def argv_of(entrypoint: str) -> list[str]:
    """The script and its arguments, split as a shell would, with nothing expanded."""
    return shlex.split(entrypoint)


def why_other_bits(framework: Framework, sync: Sync) -> str:
    """The reason why a job's result depends on who computed what; empty where it does not."""
    return WHY_OTHER_BITS.format(framework=framework) if framework in HOSTED else sync.why_other_bits


def chosen_in(spec: Mapping[str, Any]) -> dict[str, Any]:
    """The framework of a stored job file that `auto` was chosen as, with the reason; empty where it was named."""
    why = spec.get("framework_why")
    return {"framework": spec.get("framework"), "framework_why": why} if why else {}


def check_program(framework: Framework, entrypoint: str, batch: Batch, data: Data) -> None:
    """Check that the entrypoint is what the framework runs, and that the batch and the data go with it. Raises
    Impossible: naming the key to change."""
    _check_rows(framework, batch, data)
    script = framework == "torchrun"
    if framework != "auto" and script != is_script(entrypoint):
        form = SCRIPT_FORM if script else f"{FUNCTION_FORM}, or framework: torchrun for a script"
        why = f"framework: {framework} runs a {'script' if script else 'function'}, which this is not"
        raise Impossible("entrypoint", entrypoint, f"{why}; allowed: {form}")


def check_hosted(framework: Framework, spec: SpecPart) -> None:
    """Check that a hosted job has no key without meaning for it, and a folder for what its program saves. Raises
    Impossible: naming the key to change."""
    rays = RAY_UNUSED if framework == "ray_train_hosted" else {}
    for key, why in {**UNUSED, **rays}.items():
        value, default = _value(spec, key)
        # Stored job files of earlier versions name the order that was the default.
        if value != default and value != AS_STORED.get(key, default):
            raise Impossible(
                key,
                value.model_dump(exclude_defaults=True) if hasattr(value, "model_dump") else value,
                f"{key} is not used with framework: {framework}: {why}; allowed: leave it out, or framework: "
                f"native",
            )
    _check_variables(framework, _value(spec, "params")[0], _value(spec, "env")[0])
    uri, _ = _value(spec, "checkpoint.uri")
    if uri is not None and "://" in uri and not uri.startswith("file://"):
        raise Impossible(
            "checkpoint.uri",
            uri,
            f"checkpoint.uri is no folder, which framework: {framework} needs for what the program saves; "
            f"allowed: an absolute path or file://, on a file system that all nodes share",
        )


def _check_variables(framework: Framework, params: Mapping[str, Any], env: Mapping[str, str]) -> None:
    """Check that the program can be started with its variables, of which `params` are one, as JSON."""
    found = {"params": json.dumps(params)} | {f"env.{name}": value for name, value in env.items()}
    for key, text in found.items():
        if (size := len(text.encode())) > MOST_VARIABLE_BYTES:
            raise Impossible(
                key,
                None,
                f"{key} has {size} bytes, and framework: {framework} hands it to the program as a variable of the "
                f"environment; allowed: at most {MOST_VARIABLE_BYTES} bytes, or a file in working_dir",
            )


def _check_rows(framework: Framework, batch: Batch, data: Data) -> None:
    if framework == "native" and data.sets:
        raise Impossible(
            "data.sets",
            dict(data.sets),
            "data.sets is not used with framework: native, whose functions open their files themselves; allowed: leave "
            "it out, or framework: ray_train, whose get_dataset_shard gives them",
        )
    key = "batch.schedule" if batch.schedule else "data.skip" if data.skip else ""
    if framework != "native" and key:
        value = [list(pair) for pair in batch.schedule or data.skip]
        raise Impossible(
            key,
            value,
            f"{key} is not used with framework: {framework}, whose programs count their steps by batches of one size; "
            f"allowed: leave it out, or framework: native",
        )


def _value(spec: SpecPart, key: str) -> tuple[Any, Any]:
    """The value of a key, and its default."""
    name, _, inner = key.partition(".")
    value, default = getattr(spec, name), type(spec).model_fields[name].default
    if isinstance(value, dict) and inner:
        return value.get(inner), None
    return (getattr(value, inner), getattr(default, inner)) if inner else (value, default)
