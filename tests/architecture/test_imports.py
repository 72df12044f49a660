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


def _everything_in(*packages: str) -> str:
    """A statement that imports every module of these."""
    return f"""
import importlib, pkgutil
for name in {packages!r}:
    package = importlib.import_module("ringleader." + name)
    for found in pkgutil.walk_packages(getattr(package, "__path__", ()), package.__name__ + "."):
        importlib.import_module(found.name)
"""


def test_sdk_and_command_line_load_nothing_heavy() -> None:
    assert (
        _import_without(HEAVY, _everything_in("client", "spec", "wire") + "import ringleader.cli.main") == ""
    )


def test_the_blocking_itself_works() -> None:
    assert "torch is not to be imported" in _import_without(HEAVY, "import torch")


def test_training_is_free_of_ray() -> None:
    training = _everything_in("comm", "exchange", "checkpoint", "data", "optim", "train")
    assert _import_without(("ray",), training) == ""


def test_optimizers_stand_on_torch_alone() -> None:
    """A plain script may use them without the engine."""
    heavy = ("ray", "pyarrow", "sklearn", "ringleader_api")
    engine = "assert not {'ringleader.train', 'ringleader.comm'} & set(sys.modules)"
    assert _import_without(heavy, f"import ringleader\nringleader.optim.LARS\nimport sys\n{engine}") == ""


def test_what_is_pure_is_light() -> None:
    pure = _everything_in("elastic", "wire", "spec", "errors")
    assert _import_without(("ray", "torch", "mlflow", "fastapi"), pure) == ""


def test_a_supervisor_starts_without_what_only_workers_need() -> None:
    assert _import_without(("torch", "numpy", "pyarrow"), "import ringleader.runtime.supervisor.actor") == ""


def test_the_control_plane_starts_without_ray() -> None:
    assert _import_without(("ray", "torch", "numpy", "mlflow"), "import ringleader_api.__main__") == ""


@pytest.mark.everyday
def test_the_import_contracts_hold() -> None:
    lint = Path(sys.executable).parent / "lint-imports"
    done = subprocess.run(
        [lint, "--no-cache", "--no-logo"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout
