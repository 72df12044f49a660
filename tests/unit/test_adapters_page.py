"""The programs of the page on other libraries run as it shows them, with the sizes of its job file."""

from pathlib import Path

import pytest
import yaml
from pages import fenced

from ringleader.train.local import run_local
from ringleader.train.run import load_function

PAGE = "docs/how-to/bring-training-code.md"


@pytest.mark.parametrize("library", ["accelerate", "transformers"])
def test_the_program_of_a_library_runs_as_printed(library: str, tmp_path: Path, elsewhere: None) -> None:
    pytest.importorskip(library, reason=f"{library} is not installed: tests/README.md says how")
    (job,) = fenced(PAGE, "yaml", "job")
    (program,) = fenced(PAGE, "python", library)
    keys = {name: value for name, value in yaml.safe_load(job).items() if name != "working_dir"}
    file = tmp_path / f"adapted_{library}.py"
    file.write_text(program, encoding="utf-8")
    finished, _ = run_local(keys, load_function(f"{file.stem}:train", tmp_path), tmp_path)
    assert finished.steps == (12 if library == "accelerate" else 8)
    assert finished.reproducible_why == ""
