"""The reference in docs/reference/ is what the code says now, and leaves out nothing that the code has."""

import ast
import importlib
import json
import re
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import click
import pytest

import ringleader
from ringleader.cli.main import cli
from ringleader.comm.transports.nccl import OURS
from ringleader.spec import JobSpec
from ringleader.train.body.turns import STEP_METRICS
from ringleader.train.program_check.sandbox import CACHES
from ringleader.wire.states import Reason
from ringleader_api.hints import HINTS
from ringleader_api.settings import PREFIX, Settings

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "docs" / "reference"


class Scripts:
    """The modules of scripts/reference, imported by their names."""

    def __getattr__(self, name: str) -> ModuleType:
        return importlib.import_module(f"reference.{name}")


@pytest.fixture(scope="module")
def scripts() -> Iterator[Scripts]:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(ROOT / "scripts"))
        yield Scripts()
        for name in [name for name in sys.modules if name.partition(".")[0] == "reference"]:
            del sys.modules[name]


@pytest.fixture(scope="module")
def pages(scripts: Scripts) -> dict[str, str]:
    return dict(importlib.import_module("reference").pages())


def headings(page: str) -> set[str]:
    return {line.lstrip("#").strip() for line in page.splitlines() if line.startswith("##")}


def test_what_is_committed_is_what_the_code_says(pages: dict[str, str]) -> None:
    committed = {path.name: path.read_text(encoding="utf-8") for path in FOLDER.glob("*.md")}
    assert committed.keys() == pages.keys()
    stale = [name for name, text in pages.items() if committed[name] != text]
    assert stale == [], "`make docs` writes them anew"


def test_every_public_name_of_the_session_and_the_client_has_its_entry(pages: dict[str, str]) -> None:
    for page, kind in (
        ("session.md", ringleader.Session),
        ("sdk.md", ringleader.Client),
        ("sdk.md", ringleader.Job),
    ):
        public = {f"{kind.__name__.lower()}.{name}" for name in vars(kind) if not name.startswith("_")}
        assert len(public) > 5
        assert public <= headings(pages[page])
    assert {"local_session", "weights_sha256", "ParquetDataset", "collate"} <= headings(pages["session.md"])
    assert "clip_norm: float | None = None" in pages["session.md"]


def test_every_key_of_the_job_file_is_described_with_its_default(
    scripts: Scripts, pages: dict[str, str]
) -> None:
    assert list(scripts.job_file.undescribed()) == []
    page = pages["job-file.md"]
    assert set(JobSpec.model_fields) <= set(re.findall(r"^\| `(\w+)` \|", page, re.MULTILINE))
    assert "| `global_size` | whole number from 1 to 1073741824 | `64` |" in page
    assert "| `name` | text | needed |" in page


def test_what_goes_with_which_mode_is_what_the_job_file_takes(
    scripts: Scripts, pages: dict[str, str]
) -> None:
    page = pages["job-file.md"]
    assert "| `inner_steps: 8` | – | – | – | yes | – |" in page
    assert "| `precision: fp16` | yes | yes | yes | – | – |" in page
    assert "| same bits by default | yes | yes | yes | yes | – |" in page
    assert "| `token_ring` | yes | yes | – | yes |" in page


def test_every_command_has_its_entry(pages: dict[str, str]) -> None:
    def names(group: click.Group, before: str) -> Iterator[str]:
        for name, command in group.commands.items():
            yield f"{before} {name}"
            if isinstance(command, click.Group):
                yield from names(command, f"{before} {name}")

    commands = set(names(cli, "ringleader"))
    assert {"ringleader up", "ringleader token create"} <= commands
    assert commands == headings(pages["cli.md"])
    assert "`--max-points" in pages["cli.md"]


def test_every_operation_and_every_shape_has_its_entry(scripts: Scripts, pages: dict[str, str]) -> None:
    document = json.loads((ROOT / "api" / "openapi.json").read_text(encoding="utf-8"))
    operations = {f"{method} {path}" for method, path, _ in scripts.rest.operations(document)}
    shapes = document["components"]["schemas"].keys() - scripts.rest.ELSEWHERE
    assert len(operations) > 30
    assert operations | shapes <= headings(pages["rest.md"])


def test_every_event_that_is_sent_is_described_with_its_fields(scripts: Scripts) -> None:
    found: dict[str, set[str]] = defaultdict(set)
    for one in scripts.events.sent():
        if one.kind is not None:
            found[one.kind].update(one.fields)
    described = scripts.event_words.EVENTS
    assert {"worker.lost", "recovered", "job.queued", "workers.granted", "supervisor.silent"} <= found.keys()
    assert found.keys() == described.keys()
    assert {
        kind: new for kind, fields in found.items() if (new := fields - described[kind].fields.keys())
    } == {}
    assert scripts.events.unread() == [], "name the event in the call, or the call in PASSED_ON"


def test_no_word_that_looks_like_an_event_is_unknown(scripts: Scripts) -> None:
    """The calls that send events are found by name; this finds one that goes another way."""
    described = scripts.event_words.EVENTS.keys()
    firsts = "|".join(sorted({kind.partition(".")[0] for kind in described if "." in kind}))
    looks = re.compile(rf"({firsts})\.[a-z_]+")
    keys = {f"checkpoint.{key}" for key in ("every_s", "every_steps", "keep", "uri")}
    others = {"weights.safetensors", "workers.gpus", "job.json", *keys}
    unknown: set[tuple[str, str]] = set()
    for module in scripts.sources.modules().values():
        logged = {
            id(call.args[0])
            for call in ast.walk(module.tree)
            if isinstance(call, ast.Call) and call.args and ast.unparse(call.func).startswith("log.")
        }
        for node in ast.walk(module.tree):
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in logged:
                unknown |= {(module.file, node.value)} if looks.fullmatch(node.value) else set()
    assert {(file, word) for file, word in unknown if word not in described | others} == set()


def test_every_metric_is_described(scripts: Scripts, pages: dict[str, str]) -> None:
    assert set(scripts.metrics.recorded()) == scripts.metrics.WORDS.keys()
    # A program's own `lr` takes the place of ours, and Python takes no second `loss`.
    assert STEP_METRICS | {"loss", "lr"} == scripts.metrics.WORDS.keys()
    families = {family.name for family in scripts.metrics.families()}
    telemetry = (ROOT / "api" / "ringleader_api" / "telemetry.py").read_text(encoding="utf-8")
    assert families == set(re.findall(r'"(ringleader_\w+)"', telemetry))
    assert all(f"`{name}" in pages["metrics.md"] for name in families)
    assert (
        "| `ringleader_http_request_seconds` | histogram | `method`, `route`, `status` |"
        in pages["metrics.md"]
    )


def test_every_code_is_described(scripts: Scripts, pages: dict[str, str]) -> None:
    page, statuses = pages["codes.md"], scripts.codes.problem_statuses()
    assert scripts.codes.REASONS.keys() == set(Reason)
    assert HINTS.keys() <= statuses.keys()
    assert (statuses["illegal_move"], statuses["disk_full"], statuses["bad_cursor"]) == ({409}, {503}, {422})
    given = {one.code for one in scripts.codes.reasons()}
    assert {"waiting_for_capacity", "preempted", "supervisor_silent", "retrying", "cancelled"} <= given
    assert all(f"| `{code}` |" in page for code in HINTS.keys() | given | set(Reason))
    assert "| `running` | `queued`, `recovering`, `stopping` |" in page
    assert scripts.codes.unread() == [], "give the code as a constant, or name the place in PASSED_ON"
    assert "| `no_control_plane` | `NoControlPlane` |" in page


def test_every_variable_that_is_read_is_described(scripts: Scripts) -> None:
    environment = scripts.environment
    read = {name for _, name, _ in environment.read() if name is not None}
    assert {"RINGLEADER_URL", "RINGLEADER_SCRATCH", "RINGLEADER_AUTOSCALE_CPUS", "SEED"} <= read
    assert read - environment.described() == set()
    assert environment.unread() == [], "name the variable in the call, or the call in BY_NAME"
    assert environment.undescribed_settings() == set()
    # Read by name, or by a script of infra/ and not by Python.
    others = {*OURS, *CACHES, "RAY_START_HOOK", *(PREFIX + name.upper() for name in Settings.model_fields)}
    assert environment.described() - read - others == set()
