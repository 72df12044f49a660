"""The job file: one model for YAML, REST body and SDK argument. Unknown keys are errors."""

import re
import warnings
from itertools import chain
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import (
    Field,
    JsonValue,
    ValidationError,
    field_validator,
    model_validator,
)

from ringleader.errors import SpecInvalid
from ringleader.spec.alerts import ALERT_PATTERNS, AlertRules
from ringleader.spec.batch import Batch
from ringleader.spec.data import Data, with_its_order
from ringleader.spec.findings import findings, unsendable
from ringleader.spec.part import Impossible, SpecPart
from ringleader.spec.program.framework import (
    FUNCTION_FORM,
    HOSTED,
    MAX_ENTRYPOINT,
    SCRIPT_FORM,
    Framework,
    check_hosted,
    check_program,
    is_script,
)
from ringleader.spec.requirements import Requirements, uninstallable
from ringleader.spec.sync import Sync
from ringleader.spec.sync_keys import MAX_ROUND_SLICES
from ringleader.spec.variables import without_effect
from ringleader.spec.workers import Autoscale, Servers, Workers, counted, each_server, with_count
from ringleader.spec.yaml_file import Unreadable, read
from ringleader.text import utf8

ENTRYPOINT = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*")
PACKAGE = re.compile(r"sha256:[0-9a-f]{64}")
JOB_ID = re.compile(r"job_[0-9A-Z]{26}")
INIT_FROM = r"^(job_[0-9A-Z]{26}$|(/|[a-z][a-z0-9]*://)[^?]*$)"

SCHEMES = ("abfs", "abfss", "file", "gcs", "gs", "hdfs", "s3", "viewfs")
"""URI schemes of the file systems that a checkpoint may be written to: those of pyarrow."""
Precision = Literal["fp32", "bf16", "fp16"]

PositiveInt = Annotated[int, Field(strict=True, ge=1)]
Count = Annotated[int, Field(strict=True, ge=0)]
Priority = Annotated[int, Field(strict=True, ge=-1000, le=1000)]
Seconds = Annotated[float, Field(strict=True, ge=1)]
# Pydantic matches with Rust's regex: its `$` is the very end, where that of `re` lets a last newline through.
NAME = r"^[A-Za-z0-9][A-Za-z0-9._-]*$"
Name = Annotated[str, Field(min_length=1, max_length=100, pattern=NAME)]
LABEL = r"^[^\x00-\x1f\x7f-\x9f]*$"
Label = Annotated[str, Field(max_length=200, pattern=LABEL)]
MAX_WHY = 1000
VARIABLE = r"^[A-Za-z_][A-Za-z0-9_]*$"
Variable = Annotated[str, Field(pattern=VARIABLE)]
ENV_VALUE = r"^[^\x00]*$"
EnvValue = Annotated[str, Field(max_length=32_768, pattern=ENV_VALUE)]
PATTERNS = {
    INIT_FROM: (
        "is not a job id, an absolute path or a URI (init_from takes no job names)",
        "the id of a job (job_ and 26 capital letters and digits), or the absolute path, or URI without options, of a "
        "checkpoint or weights file",
    ),
    NAME: ("is not a valid name", "letters, digits, '.', '_' and '-', starting with a letter or digit"),
    LABEL: ("has control characters", "a single line of text"),
    VARIABLE: ("is not a valid variable name", "letters, digits and '_', not starting with a digit"),
    **ALERT_PATTERNS,
    ENV_VALUE: ("has a NUL character", "text without NUL"),
}
"""By pattern, the complaint about text that does not match, and the text that is allowed."""


class Checkpoint(SpecPart):
    """The intervals at which committed state is written to files that a later attempt starts from, and their place."""

    every_steps: PositiveInt | None = 500
    every_s: Seconds | None = 30
    keep: Annotated[int, Field(strict=True, ge=1, le=10_000)] = 3
    uri: Annotated[str, Field(min_length=1, max_length=2000)] | None = None

    @model_validator(mode="before")
    @classmethod
    def _none_at_all(cls, given: Any) -> Any:
        """Read `every_steps: null` without an `every_s` as no checkpoints, by steps or by time."""
        # 0 stands for a key that is left out, which keeps its default.
        if isinstance(given, dict) and given.get("every_steps", 0) is None and "every_s" not in given:
            return given | {"every_s": None}
        return given

    @field_validator("uri")
    @classmethod
    def _reachable(cls, value: str | None) -> str | None:
        scheme, sign, _ = (value or "/").partition("://")
        if "?" in (value or ""):
            raise ValueError("options belong in environment variables; allowed: a URI without options")
        if scheme not in SCHEMES if sign else not scheme.startswith("/"):
            known = ", ".join(f"{name}://" for name in SCHEMES)
            raise ValueError(f"checkpoints cannot be written there; allowed: an absolute path, or {known}")
        return value


class Policy(SpecPart):
    """The eviction of workers: after how long one that beats but does not advance, and whether a straggler."""

    evict_slow: Annotated[bool, Field(strict=True)] = False
    stall_timeout_s: Seconds = 300


class Debug(SpecPart):
    """Records beyond the usual, and whether this job may be harmed on purpose and its program checked beside it."""

    ledger: Annotated[bool, Field(strict=True)] = False
    trace: Annotated[bool, Field(strict=True)] = False
    faults: Annotated[bool, Field(strict=True)] = False
    check: Annotated[bool, Field(strict=True)] = True


# Nobody writes it: it comes with what `framework: auto` was chosen as.
FrameworkWhy = Annotated[
    Annotated[str, Field(max_length=MAX_WHY, pattern=LABEL)] | None,
    Field(json_schema_extra={"readOnly": True}),
]

# ABCMeta, the class of all models, has a method of that name. No model has, which is all that a field could hide.
warnings.filterwarnings("ignore", r'Field name "register" in "JobSpec" shadows', UserWarning)


class JobSpec(SpecPart):
    """A whole job file, checked. `JobSpec.parse` gives errors by key; the constructor raises pydantic's."""

    name: Name
    entrypoint: str
    framework: Framework = "native"
    framework_why: FrameworkWhy = None
    working_dir: str | None = None
    requirements: Requirements = None
    params: dict[str, JsonValue] = {}
    labels: dict[Name, Label] = {}
    env: dict[Variable, EnvValue] = {}
    secrets: dict[Variable, Name] = {}
    workers: Workers = Workers()
    servers: Servers = Servers()
    autoscale: Autoscale = Autoscale()
    batch: Batch = Batch()
    sync: Sync = Sync()
    precision: Precision = "fp32"
    data: Data = Data()
    checkpoint: Checkpoint = Checkpoint()
    init_from: Annotated[str, Field(max_length=2000, pattern=INIT_FROM)] | None = None
    init_optimizers: Annotated[bool, Field(strict=True)] = False
    seed: Annotated[int, Field(strict=True, ge=0, lt=1 << 63)] = 0
    project: Name = "default"
    priority: Priority = 0
    max_failures: Count = 3
    max_runtime_s: Seconds | None = None
    policy: Policy = Policy()
    debug: Debug = Debug()
    alerts: AlertRules = []
    register: Name | None = None

    @model_validator(mode="before")
    @classmethod
    def _counted(cls, source: Any) -> Any:
        return with_count(source)

    @field_validator("sync", mode="before")
    @classmethod
    def _one_word(cls, value: Any) -> Any:
        """`sync: ring` is short for the same architecture inside and between nodes."""
        return {"intra_node": value, "inter_node": value} if isinstance(value, str) else value

    @field_validator("entrypoint")
    @classmethod
    def _function(cls, value: str) -> str:
        if len(value) > MAX_ENTRYPOINT or not (ENTRYPOINT.fullmatch(value) or is_script(value)):
            raise ValueError(f"allowed: {FUNCTION_FORM}; with framework: torchrun {SCRIPT_FORM}")
        return value

    @model_validator(mode="after")
    def _serves(self) -> Self:
        if self.servers != Servers() and not self.sync.server_count:
            raise Impossible(
                "servers",
                self.servers.model_dump(exclude_unset=True),
                f"servers is not used by {self.sync.architecture}; allowed: leave it out, or parameter_server",
            )
        return self

    @model_validator(mode="after")
    def _begins_with_something(self) -> Self:
        if self.init_optimizers and self.init_from is None:
            raise Impossible(
                "init_optimizers",
                True,
                "init_optimizers is true, and there is no init_from whose optimizers' states this job could begin "
                "with; allowed: false, or with init_from",
            )
        if self.init_optimizers and str(self.init_from).endswith(".safetensors"):
            raise Impossible(
                "init_optimizers",
                True,
                "init_optimizers is true, and a weights file holds no states of optimizers; allowed: false, or with "
                "init_from a job or a checkpoint",
            )
        return self

    @model_validator(mode="after")
    def _runs_as_written(self) -> Self:
        check_program(self.framework, self.entrypoint, self.batch, self.data)
        if self.hosted:
            check_hosted(self.framework, self)
        return self

    @model_validator(mode="after")
    def _one_source(self) -> Self:
        """Refuse a variable that is in `env` and in `secrets`."""
        if both := sorted(self.env.keys() & self.secrets.keys()):
            raise ValueError(f"{both[0]} is in both env and secrets; allowed: one of the two")
        return self

    @model_validator(mode="after")
    def _scalable(self) -> Self:
        """Refuse fp16 where the gradients of one update may have different loss scales."""
        if self.precision == "fp16" and (why := self.sync.why_many_scales):
            raise Impossible(
                "precision",
                self.precision,
                f"precision: fp16 needs one loss scale for all gradients of an update, but {why}; allowed: "
                f"precision bf16, which needs none, or fp16 with synchronous servers, or with sync ring and "
                f"codec none or bf16",
            )
        return self

    @model_validator(mode="after")
    def _schedule_possible(self) -> Self:
        why = schedule_refused(self.sync, self.data)
        if self.batch.schedule and why:
            raise Impossible("batch.schedule", [list(change) for change in self.batch.schedule], why)
        return self

    @model_validator(mode="after")
    def _enough_shards(self) -> Self:
        if self.shards < self.workers.max:
            raise Impossible(
                "batch.logical_shards",
                self.shards,
                f"batch.logical_shards ({self.shards}) is below workers.max ({self.workers.max}); "
                f"allowed: logical_shards >= workers.max",
            )
        # A hosted program makes its own batches, and has no other size than the default.
        if self.batch.global_size < self.shards and not self.hosted:
            raise Impossible(
                "batch.global_size",
                self.batch.global_size,
                f"batch.global_size ({self.batch.global_size}) is below the number of logical shards "
                f"({self.shards}); allowed: at least one row for every shard",
            )
        for number, (step, rows) in enumerate(self.batch.schedule):
            if rows < self.shards:
                raise Impossible(
                    f"batch.schedule.{number}",
                    [step, rows],
                    f"batch.schedule has {rows} rows from step {step} on, below the number of logical shards "
                    f"({self.shards}); allowed: at least one row for every shard",
                )
        if self.sync.round_steps * self.shards > MAX_ROUND_SLICES:
            raise Impossible(
                "sync.inner_steps",
                self.sync.round_steps,
                f"sync.inner_steps ({self.sync.round_steps}) times the number of logical shards ({self.shards}) is "
                f"too large for one round; allowed: a product of at most {MAX_ROUND_SLICES}",
            )
        return self

    @model_validator(mode="after")
    def _enough_workers(self) -> Self:
        if (self.sync.backup_workers or 0) >= self.workers.max:
            raise Impossible(
                "sync.backup_workers",
                self.sync.backup_workers,
                f"sync.backup_workers ({self.sync.backup_workers}) is not below workers.max ({self.workers.max}), so "
                f"updates would wait for no worker; allowed: fewer backup workers than workers",
            )
        return self

    @property
    def hosted(self) -> bool:
        """Whether another library's engine runs the program: each generation starts it anew, from what it has saved."""
        return self.framework in HOSTED

    @property
    def shards(self) -> int:
        """L, the number of logical shards, constant for the job's life."""
        return self.batch.logical_shards or self.workers.max

    @property
    def each_server(self) -> Workers:
        """The resources of one server."""
        return Workers(**each_server(self.workers.model_dump(), self.servers.model_dump()))

    def gpus_of(self, role: Literal["worker", "server"]) -> int:
        return self.servers.gpus if role == "server" else self.workers.gpus

    @property
    def followed(self) -> bool:
        """Whether a joiner can follow a member step by step: every worker makes every update, from sums that are the
        same everywhere and lie in host memory."""
        return self.sync.architecture == "ring" and self.sync.codec == "none" and not self.workers.gpus

    @property
    def briefed(self) -> bool:
        """Whether a joiner learns which part of the program is over before it has a rank: where workers lease items, or
        tokens go round, there is no transaction that all begin together."""
        return self.sync.commits_together and not self.hosted

    @classmethod
    def parse(cls, source: Any, *, stored: bool = False) -> Self:
        """Check a mapping (from YAML or JSON).

        Args:
            stored: an earlier version may have accepted it: settings without effect are no reason to refuse it now.

        Raises:
            SpecInvalid: naming every wrong key, its value and what is allowed; or the settings without effect.
        """
        if not isinstance(source, dict):
            raise SpecInvalid(
                [
                    {
                        "pointer": "",
                        "value": None,
                        "allowed": "a mapping",
                        "message": "the job file is not a mapping",
                    }
                ]
            )
        unsent = unsendable(source)
        if (first := next(unsent, None)) is not None:
            raise SpecInvalid(chain([first], unsent))
        try:
            spec = cls.stored(source) if stored else cls.model_validate(source)
        except ValidationError as error:
            # `with_count` has put `servers.count` there: the finding has to name the key that the file has.
            moved = {"/sync/servers": "/servers/count"} if counted(source) else {}
            raise SpecInvalid(findings(error, cls, PATTERNS, moved)) from None
        found = [*uninstallable(spec.requirements), *without_effect(spec.env, spec.workers.threads)]
        if found and not stored:
            raise SpecInvalid(found)
        return spec

    @classmethod
    def stored(cls, spec: dict[str, Any]) -> Self:
        """A job file that was accepted, by this version or an earlier one."""
        return cls.model_validate(with_its_order(spec))

    @classmethod
    def load(cls, path: Path) -> Self:
        """Read a job file.

        Raises:
            SpecInvalid: when it cannot be read, is no YAML, names a key twice, or is wrong.
        """
        try:
            source = read(path)
        except Unreadable as error:
            raise SpecInvalid(
                [
                    {
                        "pointer": "",
                        "value": str(path),
                        "allowed": "a readable YAML file",
                        # A path may hold bytes that are no UTF-8, which no JSON can carry.
                        "message": utf8(str(error)),
                    }
                ]
            ) from None
        return cls.parse(source)


def schedule_refused(sync: Sync, data: Data) -> str:
    """The reason why the size of the global batch cannot change on the way; empty where it can."""
    reasons = {
        "with consistency: async every item is an update": sync.consistency == "async",
        "with backup_workers an update takes the items that come first, of whichever batches": bool(
            sync.backup_workers
        ),
        f"with {sync.architecture} workers are at different steps": sync.circulates,
    }
    for why, holds in reasons.items():
        if holds:
            return (
                f"batch.schedule needs steps that take the same rows whoever computes them, but {why}; allowed: no "
                f"schedule, or sync ring, local_sgd, or servers with consistency sync or ssp"
            )
    goes_by_size = {
        "data.order: block cuts files for it": data.order == "block",
        "data.skip numbers steps by it": bool(data.skip),
    }
    for why, holds in goes_by_size.items():
        if holds:
            return f"batch.schedule changes the size of the global batch, but {why}; allowed: one of the two"
    return ""
