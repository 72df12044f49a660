"""Who may import whom, beyond what import-linter reads from the sources."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
HEAVY = ("torch", "ray", "numpy", "pyarrow", "mlflow", "sklearn", "fastapi", "sqlalchemy", "torchft")
BLOCK = """
import sys
class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in BLOCKED:
            raise ImportError(f"{name} is not to be imported here")
sys.meta_path.insert(0, Blocked())
"""


def _import_without(blocked: tuple[str, ...], statement: str) -> str:
    code = f"BLOCKED = {set(blocked)!r}{BLOCK}{statement}"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False
    )
    return done.stderr if done.returncode else ""


def test_platform_is_no_package() -> None:
    """It would shadow the standard library's `platform`."""
    assert not (ROOT / "platform" / "__init__.py").exists()
    assert not (ROOT / "api" / "__init__.py").exists()
    assert not (ROOT / "jobs" / "__init__.py").exists()


@pytest.mark.parametrize(
    "module",
    ["ringleader", "ringleader.client", "ringleader.cli.main", "ringleader.spec", "ringleader.wire.package"],
)
def test_sdk_and_command_line_load_nothing_heavy(module: str) -> None:
    assert _import_without(HEAVY, f"import {module}") == ""


def test_the_blocking_itself_works() -> None:
    assert "torch is not to be imported" in _import_without(HEAVY, "import torch")


@pytest.mark.parametrize("module", ["comm", "sync", "elastic", "data", "train"])
def test_training_is_free_of_ray(module: str) -> None:
    assert _import_without(("ray",), f"import ringleader.{module}") == ""


@pytest.mark.parametrize("module", ["elastic", "wire", "spec", "errors"])
def test_what_is_pure_is_light(module: str) -> None:
    assert _import_without(("ray", "torch", "mlflow", "fastapi"), f"import ringleader.{module}") == ""


def test_a_supervisor_starts_without_what_only_workers_need() -> None:
    assert _import_without(("torch", "numpy", "pyarrow"), "import ringleader.runtime.supervisor") == ""


def test_the_import_contracts_hold() -> None:
    lint = Path(sys.executable).parent / "lint-imports"
    done = subprocess.run(
        [lint, "--no-cache", "--no-logo"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout
