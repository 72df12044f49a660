"""The commands on alerts, against the real application in this process."""

import json
from pathlib import Path

import pytest
from control_plane import URL, Stage, stage
from receivers import receiver
from test_cli_access import Inside, Run

from ringleader.cli.main import main
from ringleader.client import Client


@pytest.fixture
def here(tmp_path: Path) -> Stage:
    return stage(tmp_path / "home", alert_hosts="127.0.0.1")


@pytest.fixture
def run(here: Stage, capsys: pytest.CaptureFixture[str]) -> Run:
    def run(*arguments: str) -> tuple[int, str, str]:
        token = (here.home / "token").read_text()
        transport = Inside(here)
        code = main(arguments, connect=lambda: Client(URL, token, transport=transport, patience_s=0))
        printed = capsys.readouterr()
        assert "Traceback" not in printed.err
        return code, printed.out, printed.err

    return run


def test_a_rule_is_set_tested_shown_and_deleted(here: Stage, run: Run, tmp_path: Path) -> None:
    here.client.post("/api/v1/projects", json={"name": "default"})
    here.client.put("/api/v1/secrets/default/HOOK", json={"value": "a-key-of-the-hook"})
    file = tmp_path / "rule.yaml"
    with receiver() as hook:
        file.write_text(
            f"when: {{metric: loss, above: 10.0, steps: 3}}\nchannels: [{{webhook: '{hook.url}', secret: HOOK}}]\n"
        )
        assert run("alerts", "set", "high", str(file))[:2] == (0, "default/high: set\n")
        shown = run("alerts", "rules")[1].splitlines()[1]
        assert "metric=loss above=10 steps=3" in shown
        assert f"webhook {hook.url}" in shown
        assert run("alerts")[1] == "no alerts\n"
        assert "pending" in run("alerts", "test", "high")[1]
        here.control.alerting.tick()
        assert len(hook.posted) == 1
    (told,) = json.loads(run("alerts", "list", "-o", "json")[1])
    assert (told["state"], told["kind"], told["rule"]) == ("sent", "test", "high")
    assert run("alerts", "list", "--state", "failed")[1] == "no alerts\n"
    assert "sent" in run("alerts", "list", "--project", "default")[1]
    assert run("alerts", "delete", "high")[1] == "default/high: deleted\n"
    assert run("alerts", "rules")[1] == "no rules\n"
    assert run("alerts", "test", "high")[0] == 1


def test_a_rule_to_a_host_without_an_address_is_set_with_a_warning(
    here: Stage, run: Run, tmp_path: Path
) -> None:
    here.client.post("/api/v1/projects", json={"name": "default"})
    here.client.put("/api/v1/secrets/default/HOOK", json={"value": "a-key-of-the-hook"})
    file = tmp_path / "rule.yaml"
    file.write_text(
        "when: {state: failed}\nchannels: [{webhook: 'https://nowhere.invalid/x', secret: HOOK}]\n"
    )
    code, told, said = run("alerts", "set", "far", str(file))
    assert (code, told) == (0, "default/far: set\n")
    assert "warning: The host nowhere.invalid has no address now. Alerts to it fail until it has one." in said


def test_a_name_that_no_rule_can_have_is_refused_in_words(here: Stage, run: Run, tmp_path: Path) -> None:
    here.client.post("/api/v1/projects", json={"name": "default"})
    file = tmp_path / "rule.yaml"
    file.write_text("when: {state: failed}\nchannels: [{slack: HOOK}]\n")
    code, _, said = run("alerts", "set", "bad name!", str(file))
    assert code == 2
    head, finding, *_ = said.splitlines()
    assert head == "error (invalid): the request has wrong values:"
    assert finding.startswith(
        "  path: name: is not a valid name; allowed: letters, digits, '.', '_' and '-', "
    )


def test_a_file_that_is_no_rule_is_refused_with_what_is_wrong(here: Stage, run: Run, tmp_path: Path) -> None:
    here.client.post("/api/v1/projects", json={"name": "default"})
    file = tmp_path / "rule.yaml"
    for text, words in (
        ("when: {state: failed}\n", "when and channels"),
        ("when: [\n", "rule.yaml"),
        ("when: {state: odd}\nchannels: [{mail: a@example.org}]\n", "when.state"),
        ("when: {state: failed}\nchannels: [{mail: a@example.org}]\n", "RINGLEADER_SMTP_HOST"),
    ):
        file.write_text(text)
        code, _, error = run("alerts", "set", "high", str(file))
        assert (code, words in error) == (2, True), error
