"""The programs of the page on other libraries run as it shows them, with the sizes of its job file."""

from pathlib import Path

import pytest
import yaml
from pages import fenced

from ringleader.spec import JobSpec
from ringleader.train.local import run_local
from ringleader.train.run import function_of, load_function

PAGE = "docs/how-to/bring-training-code.md"
OF_RAY = "docs/how-to/run-ray-train.md"


@pytest.mark.parametrize("library", ["accelerate", "transformers", "trl", "lightning", "fabric"])
def test_the_program_of_a_library_runs_as_printed(library: str, tmp_path: Path, elsewhere: None) -> None:
    package = "lightning" if library == "fabric" else library
    pytest.importorskip(package, reason=f"{package} is not installed: tests/README.md says how")
    (job,) = fenced(PAGE, "yaml", "job")
    (program,) = fenced(PAGE, "python", library)
    keys = {name: value for name, value in yaml.safe_load(job).items() if name != "working_dir"}
    file = tmp_path / f"adapted_{library}.py"
    file.write_text(program, encoding="utf-8")
    finished, _ = run_local(keys, load_function(f"{file.stem}:train", tmp_path), tmp_path)
    assert finished.steps == (12 if library == "accelerate" else 8)
    assert finished.reproducible_why == ""


def test_the_function_of_ray_train_runs_as_printed(
    tmp_path: Path, elsewhere: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    (job,) = fenced(OF_RAY, "yaml", "ray_train")
    (program,) = fenced(OF_RAY, "python", "ray_train")
    (alone,) = fenced(OF_RAY, "python", "ray_train_local")
    (tmp_path / "from_ray.py").write_text(program, encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    spec = JobSpec.parse({name: v for name, v in yaml.safe_load(job).items() if name != "working_dir"})
    finished, told = run_local(spec, function_of(spec, tmp_path), tmp_path)
    assert finished.steps == 24
    assert finished.reproducible_why == ""
    assert sum("accuracy" in values for values in told.values.values()) == 3
    assert len(list(tmp_path.glob("ray-checkpoint-*.tar"))) == 3
    exec(compile(alone, "alone", "exec"), {})
