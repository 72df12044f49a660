"""Reports: one file with all that is told of a job, or of several, whatever users named them, within bounds."""

import json
import os
import tracemalloc
from datetime import datetime, timedelta
from html.parser import HTMLParser
from math import isfinite, nan
from pathlib import Path
from typing import Any

import pytest
from control_plane import RESULT, SPEC, FakeCluster, Stage, connected, event, metric, outcome, stage, status
from fastapi.testclient import TestClient

from ringleader.cli.main import main
from ringleader.wire.artifacts import FILE, report_name
from ringleader_api.reports.across import marks
from ringleader_api.reports.chart import HEIGHT, WIDTH, Line, chart, ticks
from ringleader_api.services.records.metrics import Axis
from ringleader_api.store.tables import Job

MARKUP = '"><script>alert(1)</script><img src=x onerror=alert(1)>{{ 7 * 7 }}'
ALLOWED = {
    *("html", "head", "meta", "title", "style", "body", "h1", "h2", "h3", "p", "section", "dl", "dt", "dd"),
    *("div", "table", "thead", "tbody", "tr", "th", "td", "pre", "ul", "li"),
    *("svg", "line", "text", "polyline"),
}
VOID = {"meta", "line"}


class Read(HTMLParser):
    """What a page consists of: its tags and attributes, its text. Each tag is closed in its order."""

    def __init__(self, page: str) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: set[str] = set()
        self.attributes: set[str] = set()
        self.values: list[str] = []
        self.text: list[str] = []
        self.points: list[list[tuple[float, float]]] = []
        self._open: list[str] = []
        self.feed(page)
        self.close()
        assert self._open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes |= {name for name, _ in attrs}
        self.values += [value or "" for _, value in attrs]
        if tag == "polyline":
            corners = (dict(attrs)["points"] or "").split()
            self.points.append([(float(x), float(y)) for x, y in (one.split(",") for one in corners)])
        if tag not in VOID:
            self._open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in VOID:
            self._open.pop()

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text.append(data)

    @property
    def words(self) -> str:
        return " ".join(self.text)


def told(here: Stage, job_id: str) -> None:
    """A job that lost a worker, with a metric whose name is markup, and ended."""
    happened: list[tuple[str, dict[str, Any]]] = [
        ("generation.formed", {"members": ["w0", "w1"], "cause": "start", "step": 0}),
        ("worker.joined", {"worker": "w1", "rank": 1, "step": 0}),
        ("worker.lost", {"worker": "w1", "rank": 1, "cause": f"died {MARKUP}", "step": 7}),
        ("recovered", {"detect_s": 0.25, "redo_s": 1.5, "total_s": 2.0, "steps_lost": 3, "step": 8}),
    ]
    records = [event(seq, kind, **data) for seq, (kind, data) in enumerate(happened, 1)]
    records += [metric(step, step, loss=1.0 / step, **{MARKUP: 1.0}) for step in range(1, 31)]
    records.append(outcome(1, "succeeded", result={**RESULT, "scores": {MARKUP: 0.5}}))
    here.post(job_id, records=records, status=status("running", 30))
    here.tick(2)


def report(client: TestClient, path: str) -> Read:
    answer = client.get(f"/api/v1/{path}")
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"] == "text/html; charset=utf-8"
    policy = answer.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "script-src" not in policy
    assert "sandbox" in policy
    assert answer.headers["content-disposition"].startswith("attachment;")
    read = Read(answer.text)
    # Nothing but text and drawing: no script, no handler, nothing that is fetched.
    assert read.tags <= ALLOWED
    assert not [name for name in read.attributes if name.startswith("on") or name in {"src", "href", "style"}]
    assert "url(" not in answer.text
    assert "@import" not in answer.text
    return read


def test_a_report_of_a_job_has_its_curves_losses_and_job_file_and_nothing_that_runs(tmp_path: Path) -> None:
    here = stage(tmp_path, FakeCluster(16))
    job_id = here.running(labels={"note": "<b>bold</b>"}, params={"text": MARKUP}, env={"KEY": "hunter2"})
    told(here, job_id)
    with here.control.store.write() as session:
        # No job file may have such a name; what the database holds is escaped all the same.
        session.get_one(Job, job_id).name = MARKUP
    page = report(here.client, f"jobs/{job_id}/report")
    words = page.words
    assert words.count("{{ 7 * 7 }}") > 4
    assert "49" not in words.split()
    for said in (job_id, "succeeded", "note=<b>bold</b>", f"died {MARKUP}", "worker lost", "w1 (rank 1)"):
        assert said in words
    assert "KEY: (left out)" in words
    assert "hunter2" not in words
    assert "0.25 s" in words
    assert "1.5 s" in words
    assert "entrypoint: ringleader_jobs.digits:train" in words
    assert RESULT["weights_sha256"] in words
    assert [len(points) for points in page.points] == [30, 30]


def test_a_comparison_says_what_differs_and_names_the_jobs_that_one_may_not_see(tmp_path: Path) -> None:
    here = stage(tmp_path, FakeCluster(16))
    here.client.post("/api/v1/projects", json={"name": "other"})
    mine, hidden = here.running(), here.running(project="other", name="hidden-name")
    more = here.running(params={"lr": 0.75, "layers": {"hidden": 64}}, env={"KEY": "hunter2"})
    for seq, job_id in enumerate((mine, hidden, more)):
        here.post(job_id, records=[metric(1, 1, loss=float(seq)), metric(2, 2, loss=5.0)])
    viewer = here.user("ann", default="viewer")
    page = report(viewer, f"curves/report?jobs={mine},{hidden},{more},job_gone&names=loss,nothing")
    words = page.words
    assert f"Left out: {hidden}, job_gone." in words
    assert "hidden-name" not in words
    assert "No values: nothing." in words
    assert f"digits ({mine[-5:]})" in words
    assert "params.lr" in words
    assert "params.layers.hidden" not in words
    assert "env.KEY" in words
    assert "hunter2" not in words
    assert len(page.points) == 2
    assert viewer.get(f"/api/v1/jobs/{hidden}/report").status_code == 404
    assert viewer.get("/api/v1/curves/report?jobs=").status_code == 422


def test_a_report_has_no_credential_of_a_uri_and_no_address_of_an_alert(tmp_path: Path) -> None:
    here = stage(tmp_path, FakeCluster(16))
    channels = [
        {"webhook": "https://hooks.example.org/hunter2?token=hunter2", "secret": "key"},
        {"mail": "hunter2@example.org"},
    ]
    alerts = [{"name": "lost", "when": {"state": "failed"}, "channels": channels}]
    uris = {"a": "s3://user:hunter2@bucket/rows", "b": ["https://host/rows?sig=hunter2"], "c": "a@b: c://d?"}
    job_id, other = here.running(params=uris), here.running()
    with here.control.store.write() as session:
        job = session.get_one(Job, job_id)
        job.spec = {**job.spec, "alerts": alerts}
    why = {"code": "data", "message": "cannot read s3://user:hunter2@bucket/rows?key=hunter2 (403)"}
    here.post(job_id, records=[{**outcome(1, "failed"), "reason": why}])
    here.tick(2)
    words = report(here.client, f"jobs/{job_id}/report").words
    assert "hunter2" not in words
    for said in (
        "://(left out)@bucket/rows",
        "https://host/rows?(left out)",
        "webhook: (left out)",
        "secret: key",
    ):
        assert said in words
    assert "cannot read s3://(left out)@bucket/rows?(left out) (403)" in words
    assert "hunter2" not in report(here.client, f"curves/report?jobs={job_id},{other}").words


def test_leaves_below_a_long_key_do_not_each_repeat_it(tmp_path: Path) -> None:
    here = stage(tmp_path, FakeCluster(16))
    long = "k" * 100_000
    first, second = (here.running(params={long: {f"{n:04}": seed for n in range(1000)}}) for seed in (1, 2))
    tracemalloc.start()
    words = report(here.client, f"curves/report?jobs={first},{second}").words
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert "params.kkk" in words
    assert peak < 20_000_000


@pytest.mark.parametrize(
    "told", ["NaN", "Infinity", "-1e400", f"-{10**400}", f"{10**400}", "true", '"x"', "-1"]
)
def test_what_a_job_tells_as_a_time_and_is_none_is_a_dash(tmp_path: Path, told: str) -> None:
    here = stage(tmp_path, FakeCluster(16))
    job_id = here.running()
    records = [event(1, "recovered", step=3)]
    body = json.dumps({"attempt": 1, "records": records}).replace('"step": 3', f'"detect_s": {told}')
    token = here.cluster.alive[job_id, 1].ingest_token
    headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
    assert here.client.post(f"/api/v1/jobs/{job_id}/ingest", content=body, headers=headers).status_code == 200
    assert "Recoveries" in report(here.client, f"jobs/{job_id}/report").words


def test_a_comparison_draws_as_many_metrics_as_may_be_named(tmp_path: Path) -> None:
    here = stage(tmp_path, FakeCluster(16))
    job_id = here.running()
    here.post(job_id, records=[metric(n, n, **{f"m{k:02}": 1.0 for k in range(30)}) for n in (1, 2)])
    asked = [f"m{k:02}" for k in range(23)] + ["nothing"]
    page = report(here.client, f"curves/report?jobs={job_id}&names={','.join(asked)}")
    assert (len(page.points), "No values: nothing." in page.words) == (23, True)
    all_of_them = report(here.client, f"curves/report?jobs={job_id}")
    assert (len(all_of_them.points), "The first 24 of 30 metrics." in all_of_them.words) == (24, True)
    beyond = here.client.get(f"/api/v1/curves/report?jobs={job_id}&names={','.join([*asked, 'm23'])}")
    assert (beyond.status_code, beyond.json()["code"]) == (422, "bad_list")


def test_a_report_is_bounded_and_says_what_it_leaves_out(tmp_path: Path) -> None:
    here = stage(tmp_path, FakeCluster(16))
    job_id = here.running(labels={"long": "x" * 200})
    records = [event(n, "worker.lost", worker="w" * 400, cause="c" * 3000, step=n) for n in range(1, 501)]
    here.post(job_id, records=records)
    for first in range(1, 3001, 300):
        values = {f"m{n:03}": 1.0 for n in range(30)}
        here.post(
            job_id,
            records=[
                metric(step, step, **{**values, "m000": 9.0 if step == 1234 else 1.0})
                for step in range(first, first + 300)
            ],
        )
    answer = here.client.get(f"/api/v1/jobs/{job_id}/report")
    assert len(answer.content) < 1_500_000
    page = Read(answer.text)
    assert "The first 24 of 30 metrics." in page.words
    assert "The newest 200 of 500." in page.words
    assert len(page.points) == 24
    assert all(len(points) <= 600 for points in page.points)
    # The only high value of 3,000 is among the points that are left.
    assert min(y for _, y in page.points[0]) < HEIGHT / 3 < max(y for _, y in page.points[0])


@pytest.mark.parametrize(
    "values", [[0.0], [3.0, 3.0], [1e308, -1e308], [5e-324, 0.0], [1e16, 1e16 + 2], [-1.0, 1e300]]
)
def test_a_chart_draws_any_finite_values_inside_its_picture(values: list[float]) -> None:
    drawn = chart("loss", [Line("a", list(enumerate(values))), Line("b", [])], lost=[0, 99])
    assert drawn is not None
    corners = [tuple(map(float, one.split(","))) for one in drawn.traces[0].corners.split()]
    assert len(corners) == max(2, len(values))
    assert all(0 <= x <= WIDTH and 0 <= y <= HEIGHT for x, y in corners)
    assert 1 <= len(drawn.up) <= 12
    assert all(isfinite(float(tick.at)) for tick in (*drawn.up, *drawn.across))
    assert len(drawn.lost) == 1


def test_marks_are_round_and_inside_the_range() -> None:
    assert ticks(0, 1, 5) == [0, 0.2, 0.4, 0.6, 0.8, 1]
    assert ticks(0.03, 0.11, 4) == [0.04, 0.06, 0.08, 0.1]
    assert ticks(nan, 1, 4) is not None
    assert chart("loss", [Line("a", [])]) is None


def test_the_sdk_and_the_command_line_write_reports(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    here = stage(tmp_path / "home", FakeCluster(16))
    monkeypatch.chdir(tmp_path)
    first, second = here.running(), here.running()
    with connected(here) as client:
        path = client.job(first).report(tmp_path / "out" / "one.html")
        assert SPEC["name"] in Read(path.read_text()).words
        path = client.report([first, second], tmp_path / "two.html", "loss")
        assert "2 jobs compared" in Read(path.read_text()).words
    assert main(["report", first], connect=lambda: connected(here)) == 0
    assert first in Read((tmp_path / f"report-{first}.html").read_text()).words
    assert main(["report", first, second, "--metric", "loss"], connect=lambda: connected(here)) == 0
    written = tmp_path / f"comparison-{first[-8:]}-{second[-8:]}.html"
    assert "No values: loss." in Read(written.read_text()).words
    assert main(["report", first, "--metric", "loss"], connect=lambda: connected(here)) == 2


def test_one_id_is_one_job_and_reports_on_other_jobs_have_other_names(tmp_path: Path) -> None:
    here = stage(tmp_path / "home", FakeCluster(16))
    job_id = here.running()
    with connected(here) as client:
        page = Read(client.report(job_id, tmp_path / "one.html").read_text())
    assert "1 job compared" in page.words
    assert "Left out" not in page.words
    ids = [f"job_{number:026d}" for number in range(10)]
    groups = [ids[:1], ids[:2], ids[1:3], ids[:4], ids[:5], ids[1:6], ids]
    assert len({report_name(group) for group in groups}) == len(groups)
    assert all(FILE.fullmatch(report_name(group)) for group in [*groups, ['"\n../x', "é" * 300]])


def curved(here: Stage, job_id: str) -> datetime:
    """A job that has told of a loss each minute, ten in all, and lost a worker in between. Returns its start."""
    started = datetime.fromisoformat(here.job(job_id)["started_at"])
    records = [
        {**metric(step, step, loss=1.0 / step), "at": (started + timedelta(minutes=step)).isoformat()}
        for step in range(1, 11)
    ]
    lost = event(20, "worker.lost", worker="w1", rank=1, cause="died", step=7)
    records.append({**lost, "at": (started + timedelta(minutes=7, seconds=30)).isoformat()})
    here.post(job_id, records=records, status=status("running", 10))
    return started


def corners(page: str) -> list[int]:
    return [len(points) for points in Read(page).points]


def test_a_report_draws_the_stretch_that_is_asked_for_by_its_axis(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = stage(tmp_path / "home", FakeCluster(16))
    monkeypatch.chdir(tmp_path)
    ids = [here.running(), here.running()]
    started, _ = (curved(here, job_id) for job_id in ids)
    with connected(here) as client:
        whole = client.report(ids, tmp_path / "a.html", "loss", axis="relative").read_text()
        by_step = client.report(ids, tmp_path / "b.html", "loss", first=3, last=5).read_text()
        lately = client.report(ids, tmp_path / "c.html", "loss", axis="relative", first=480, last=560)
        of_one = client.job(ids[0]).report(tmp_path / "d.html", axis="relative", first=420).read_text()
    assert (corners(whole), corners(by_step)) == ([10, 10], [3, 3])
    assert "By the time since each job started." in Read(whole).words
    assert "4 min \n" in Read(whole).words
    assert "By step from 3 to 5." in Read(by_step).words
    assert corners(lately.read_text()) == [2, 2]  # a line of a point to itself
    assert (corners(of_one), 'class="lost"' in of_one) == ([4], True)
    since = f"{started + timedelta(minutes=8, seconds=1):%Y-%m-%dT%H:%M:%S}"
    command = ["report", ids[0], "--x", "wall", "--from", since, "--out", "wall.html"]
    assert main(command, connect=lambda: connected(here)) == 0
    by_time = (tmp_path / "wall.html").read_text()
    assert (corners(by_time), 'class="lost"' in by_time) == ([2], False)
    assert f"{started + timedelta(minutes=9, seconds=30):%m-%d %H:%M:%S}" in Read(by_time).words
    for wrong in (["--from", "soon"], ["--x", "wall", "--to", "noon"], ["--x", "rows"]):
        assert main(["report", ids[0], *wrong], connect=lambda: connected(here)) == 2


@pytest.mark.parametrize("axis", list(Axis))
@pytest.mark.parametrize("extent", [0.0, 0.5, 1.0, 59.0, 3600.0, 86_400.0 * 3, 86_400.0 * 2000])
def test_any_stretch_has_a_few_marks_inside_it(axis: Axis, extent: float) -> None:
    low = 1_795_000_000.5
    found = marks(low, low + extent, axis)
    assert all(low <= at <= low + extent + 1e-6 for at, _ in found) or extent == 0
    assert len(found) <= 13
    assert len(found) >= 1 or extent <= 1


def test_a_file_that_cannot_be_written_is_said_and_one_that_is_has_the_users_rights(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    here = stage(tmp_path / "home", FakeCluster(16))
    job_id = here.running()
    (tmp_path / "file").write_text("here before")
    out = tmp_path / "file" / "report.html"
    assert main(["report", job_id, "--out", str(out)], connect=lambda: connected(here)) == 1
    assert f"{out} cannot be written" in capsys.readouterr().err
    before = os.umask(0o077)
    try:
        with connected(here) as client:
            path = client.job(job_id).report(tmp_path / ("n" * 250 + ".html"))
    finally:
        os.umask(before)
    assert path.stat().st_mode & 0o777 == 0o600
    assert not list(tmp_path.glob(".*"))
