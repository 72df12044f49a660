"""The sweep file: many trials of one job file, each with other values of some of its keys."""

import json
from collections.abc import Mapping
from copy import deepcopy
from itertools import accumulate
from math import prod
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import Field, JsonValue, ValidationError, model_validator

from ringleader.errors import SpecInvalid
from ringleader.spec.findings import findings, unsendable
from ringleader.spec.job import NAME, PATTERNS, JobSpec, Name
from ringleader.spec.part import Impossible, SpecPart
from ringleader.spec.yaml_file import Unreadable, read
from ringleader.text import utf8

MAX_TRIALS = 1000
MAX_KEYS = 50
TEMPLATE_BYTES = 64 * 1024
"""The most that a template takes as JSON: each trial has a copy in its job."""
POINTS_BYTES = 4 * 1024 * 1024
"""The most that the points of all trials take as JSON together."""
OWN_KEYS = ("name", "project", "working_dir")
"""The keys of the job file that the sweep sets, or that are the same in all trials."""
FILE = "sweep file"
SWEEP_LABEL, ID_LABEL, TRIAL_LABEL = "sweep", "sweep_id", "trial"

Pair = Annotated[list[float], Field(min_length=2, max_length=2)]
Whole = Annotated[int, Field(strict=True, ge=-(2**53), le=2**53)]
Some = Annotated[list[JsonValue], Field(min_length=1, max_length=MAX_TRIALS)]
Steps = Annotated[int, Field(strict=True, ge=1, lt=2**53)]


class Range(SpecPart):
    """The values of one key: numbers between two ends (`uniform`, `log_uniform`, whole ones with `int`), or one of a
    list (`choice`, or `values`, which says the same)."""

    uniform: Pair | None = None
    log_uniform: Pair | None = None
    int: Annotated[list[Whole], Field(min_length=2, max_length=2)] | None = None
    choice: Some | None = None
    values: Some | None = None

    @model_validator(mode="after")
    def _one_kind(self) -> Self:
        given = [key for key in type(self).model_fields if getattr(self, key) is not None]
        if len(given) != 1:
            raise ValueError(
                f"{' and '.join(given) or 'nothing'} is given; allowed: one of {', '.join(type(self).model_fields)}"
            )
        ends = self.uniform or self.log_uniform or self.int
        if ends is not None and ends[0] >= ends[1]:
            raise ValueError(
                f"the first end ({ends[0]}) is not below the second ({ends[1]}); allowed: [low, high]"
            )
        if self.log_uniform is not None and self.log_uniform[0] <= 0:
            raise ValueError(
                "log_uniform begins at or below 0, which has no logarithm; allowed: ends above 0"
            )
        return self

    @property
    def options(self) -> list[JsonValue] | None:
        """All values, where they can be counted."""
        if self.int is not None:
            low, high = self.int
            # Counted before they are made: the ends may lie 2**54 apart.
            return list(range(low, high + 1)) if high - low < MAX_TRIALS else None
        return self.choice if self.choice is not None else self.values


class Objective(SpecPart):
    """The metric that trials are compared by, and which end of it is good."""

    name: Annotated[str, Field(min_length=1, max_length=250)]
    goal: Literal["minimize", "maximize"] = "minimize"


class Asha(SpecPart):
    """Asynchronous successive halving (Li et al., 2020): of the trials that have reached a rung one in `reduction` goes
    on. The rungs are steps, given as `rungs`, or as `min_steps` and its products with `reduction`."""

    rungs: Annotated[list[Steps], Field(min_length=1, max_length=20)] | None = None
    min_steps: Steps | None = None
    reduction: Annotated[int, Field(strict=True, ge=2, le=100)] = 3

    @model_validator(mode="after")
    def _rungs_once(self) -> Self:
        if (self.rungs is None) == (self.min_steps is None):
            raise ValueError("allowed: one of rungs and min_steps")
        if self.rungs is not None and self.rungs != sorted(set(self.rungs)):
            raise Impossible("rungs", self.rungs, "the rungs do not grow; allowed: steps in ascending order")
        return self

    def steps(self, trials: int) -> tuple[int, ...]:
        """The steps of the rungs: as many as leave one of so many trials behind the last."""
        if self.rungs is not None:
            return tuple(self.rungs)
        assert self.min_steps is not None
        steps, left = [self.min_steps], trials // self.reduction
        while left >= self.reduction:
            steps.append(steps[-1] * self.reduction)
            left //= self.reduction
        return tuple(steps)


class Promotion(SpecPart):
    """The rule by which trials go on at a rung."""

    asha: Asha


class SweepSpec(SpecPart):
    """A whole sweep file, checked. `SweepSpec.parse` gives errors by key."""

    name: Annotated[str, Field(min_length=1, max_length=90, pattern=NAME)]
    project: Name = "default"
    template: dict[str, JsonValue]
    space: Annotated[dict[str, Range], Field(min_length=1, max_length=MAX_KEYS)]
    method: Literal["grid", "random", "sobol", "optuna"] = "random"
    trials: Annotated[int, Field(strict=True, ge=1, le=MAX_TRIALS)] | None = None
    seed: Annotated[int, Field(strict=True, ge=0, lt=1 << 63)] = 0
    metric: Objective
    parallel: Annotated[int, Field(strict=True, ge=1, le=MAX_TRIALS)] = 4
    promotion: Promotion | None = None

    @model_validator(mode="after")
    def _keys_of_a_job_file(self) -> Self:
        known = JobSpec.model_fields.keys() - set(OWN_KEYS)
        for path in self.space:
            first, *rest = path.split(".")
            if first not in known or not all(rest):
                raise Impossible(
                    ("space", path),
                    path,
                    f"{path} is not a key of the job file that trials may differ in; allowed: a dotted path such as "
                    f"params.lr that begins with one of {', '.join(sorted(known))}",
                )
            outer = accumulate(rest[:-1], "{}.{}".format, initial=first) if rest else ()
            if shorter := next((one for one in outer if one in self.space), None):
                raise Impossible(("space", path), path, f"{path} lies in {shorter}; allowed: one of the two")
        return self

    @model_validator(mode="after")
    def _counted(self) -> Self:
        if self.method != "grid":
            if self.trials is None:
                raise Impossible(
                    "trials", None, f"{self.method} needs a number of trials; allowed: 1 to {MAX_TRIALS}"
                )
            return self
        for path, values in self.space.items():
            if values.options is None:
                raise Impossible(
                    ("space", path),
                    values.model_dump(exclude_none=True),
                    f"a grid needs values that can be counted; allowed: choice, values, or int with at most "
                    f"{MAX_TRIALS} of them, or another method",
                )
        size = self.size
        if size > MAX_TRIALS or self.trials not in (None, size):
            raise Impossible(
                "trials" if size <= MAX_TRIALS else "space",
                self.trials if size <= MAX_TRIALS else size,
                f"the grid has {size} points; allowed: at most {MAX_TRIALS}, and no other number of trials than that",
            )
        return self

    @model_validator(mode="after")
    def _storable(self) -> Self:
        if (size := _json_bytes(self.template)) > TEMPLATE_BYTES:
            raise Impossible(
                "template",
                None,
                f"the template takes {size} bytes as JSON; allowed: at most {TEMPLATE_BYTES}; move what is large into "
                f"a file of the working directory",
            )
        longest = {
            path: max(map(_json_bytes, values.options or [0.0])) for path, values in self.space.items()
        }
        whole = self.size * sum(_json_bytes(path) + size for path, size in longest.items())
        if whole > POINTS_BYTES:
            path = max(longest, key=longest.__getitem__)
            raise Impossible(
                ("space", path),
                None,
                f"the points of {self.size} trials may take {whole} bytes as JSON; allowed: at most {POINTS_BYTES}; "
                f"give short names as options, and look up what they stand for in the training program",
            )
        return self

    @property
    def size(self) -> int:
        """The number of trials."""
        if self.method != "grid":
            assert self.trials is not None
            return self.trials
        return prod(len(values.options or ()) for values in self.space.values())

    @property
    def rungs(self) -> tuple[int, ...]:
        """The steps of the rungs; none without a promotion."""
        return self.promotion.asha.steps(self.size) if self.promotion is not None else ()

    def job_file(self, number: int, point: Mapping[str, Any], sweep_id: str | None = None) -> dict[str, Any]:
        """The job file of a trial: the template with these values by path, and labels to find it by. `sweep_id`: of the
        sweep, once it has one."""
        made: dict[str, Any] = deepcopy(self.template)
        for path, value in point.items():
            _set(made, path.split("."), value)
        labels = made.get("labels")
        own = {SWEEP_LABEL: self.name, TRIAL_LABEL: str(number)}
        if sweep_id is not None:  # the name may be that of other sweeps, too
            own[ID_LABEL] = sweep_id
        return {
            **made,
            "name": f"{self.name}-{number}",
            "project": self.project,
            # What is no mapping stays, for the job file's own check to refuse by its key.
            "labels": {**labels, **own} if isinstance(labels, dict) else own if labels is None else labels,
        }

    @classmethod
    def parse(cls, source: Any) -> Self:
        """Check a mapping (from YAML or JSON). The template is checked as job files of its trials.

        Raises:
            SpecInvalid: naming every wrong key, its value and what is allowed.
        """
        if not isinstance(source, dict):
            wrong = [_finding("", None, "a mapping", "the sweep file is not a mapping")]
            raise SpecInvalid(wrong, file=FILE)
        if unsent := list(unsendable(source)):
            raise SpecInvalid(unsent, file=FILE)
        try:
            return cls.model_validate(source)
        except ValidationError as error:
            raise SpecInvalid(findings(error, cls, PATTERNS, {}), file=FILE) from None

    @classmethod
    def load(cls, path: Path) -> "tuple[Self, Path]":
        """Read a sweep file, as `beside` the folder that it lies in."""
        return cls.beside(path.absolute().parent, _read(path, ""))

    @classmethod
    def beside(cls, base: Path, source: Any) -> "tuple[Self, Path]":
        """Check a mapping. A template of the form `job: PATH`, relative to `base`, is replaced by that job file.

        Returns:
            The sweep, and the folder that relative paths of the template start from.

        Raises:
            SpecInvalid: when the job file cannot be read, is no YAML, or names a key twice; and as `parse`.
        """
        template = source.get("template") if isinstance(source, dict) else None
        if isinstance(template, dict) and template.keys() == {"job"} and isinstance(template["job"], str):
            named = base / template["job"]
            source, base = {**source, "template": _read(named, "/template/job")}, named.parent
        return cls.parse(source), base


def _set(made: dict[str, Any], keys: list[str], value: Any) -> None:
    *outer, last = keys
    for number, key in enumerate(outer):
        inner = made.setdefault(key, {})
        if not isinstance(inner, dict):
            # Such as `sync: ring`, which is short for a mapping, and would be lost.
            pointer, path = "/".join(["/template", *outer[: number + 1]]), ".".join(keys)
            message = f"{inner!r} has no keys, and space names {path}"
            raise SpecInvalid([_finding(pointer, inner, "a mapping", message)], file=FILE)
        made = inner
    made[last] = deepcopy(value)  # the option is that of other trials, too


def _json_bytes(value: Any) -> int:
    return len(json.dumps(value).encode())


def _read(path: Path, pointer: str) -> Any:
    try:
        return read(path)
    except Unreadable as error:
        wrong = _finding(pointer, str(path), "a readable YAML file", utf8(str(error)))
        raise SpecInvalid([wrong], file=FILE) from None


def _finding(pointer: str, value: Any, allowed: str, message: str) -> dict[str, Any]:
    return {"pointer": pointer, "value": value, "allowed": allowed, "message": message}
