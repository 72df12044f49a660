"""The pages in docs/ show programs that run as they are printed."""

from pathlib import Path

import pytest
import torch
import yaml
from pages import Shown, all_shown, fenced, names_of, shown
from torch.nn.utils import parameters_to_vector

from ringleader.spec import JobSpec
from ringleader.train import Session
from ringleader.train.local import run_local

PORT = "docs/port-your-script.md"
SPEC = {"name": "shown", "entrypoint": "shown:train", "batch": {"global_size": 64}, "workers": {"max": 4}}


@pytest.mark.parametrize("program", all_shown(), ids=str)
def test_a_program_of_a_page_runs_in_one_process(program: Shown, tmp_path: Path) -> None:
    finished, _ = run_local(SPEC, program, tmp_path)
    assert finished.steps > 0
    assert finished.reproducible_why == ""


def test_the_script_and_its_port_make_as_many_steps_and_learn_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (script,) = fenced(PORT, "python", "yours")
    names = names_of(PORT, script)
    finished, _ = run_local(SPEC, shown(PORT)[0], tmp_path)
    assert finished.steps == names["schedule"].last_epoch
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert [epoch for epoch, _ in lines] == [*map(str, range(12))] * 2
    assert all(float(accuracy) > 0.7 for epoch, accuracy in lines if epoch == "11")


def test_the_port_runs_as_the_page_tries_it(capsys: pytest.CaptureFixture[str]) -> None:
    (local,) = fenced(PORT, "python", "local")
    names = names_of(PORT, shown(PORT)[0].text + local)
    assert capsys.readouterr().out.splitlines()[-1] == f"48 {names['session'].loss}"


def test_the_job_files_of_the_page_are_valid() -> None:
    texts = fenced(PORT, "yaml", "job")
    assert len(texts) == 2
    for text in texts:
        JobSpec.parse(yaml.safe_load(text))


def test_the_judge_stays_while_the_generator_learns_by_turns(tmp_path: Path) -> None:
    """What the page says of GANs by turns: an optimizer whose parameters got no gradient does not step."""
    (by_turns,) = [program for program in shown(PORT) if "session.global_step % 2" in program.text]
    learned: list[list[bool]] = []

    def train(session: Session) -> None:
        before: list[torch.Tensor] = []

        def look() -> None:
            now = [parameters_to_vector(model.parameters()).clone() for model in session._held.models]
            if before:
                learned.append([not torch.equal(*pair) for pair in zip(before, now, strict=True)])
            before[:] = now

        session.on_commit(look)
        by_turns(session)

    run_local(SPEC, train, tmp_path)
    generator, judge = [True, False], [False, True]
    assert learned == [generator, judge] * 5 + [generator]
