"""MLflow's own page over a server of its own: the runs of an experiment drawn on its page of a metric."""

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import httpx

from ringleader.bench.broken import PeerFailed
from ringleader.bench.page.browser import DEADLINE_MS
from ringleader.cli.stack.home import Home
from ringleader.cli.stack.recipes import REAL, mlflow_url
from ringleader.cli.stack.service import Service
from ringleader.client.unix_socket import ClientRoute

if TYPE_CHECKING:
    from playwright.sync_api import Page

METRIC = "loss"
BEGAN_MS = 1_700_000_000_000
DRAW = """async ([address, runs, deadline]) => {
  const frame = () => new Promise((done) => requestAnimationFrame(() => setTimeout(done)));
  const lines = () => [...document.querySelectorAll(".js-plotly-plot path.js-line")];
  const drawn = () => lines().filter((line) => line.getAttribute("d"));
  const began = performance.now();
  location.hash = address;
  while (drawn().length < runs) {
    if (performance.now() - began > deadline) throw new Error(`${drawn().length} of ${runs} runs are drawn`);
    await frame();
  }
  await frame();
  return (performance.now() - began) / 1000;
}"""
"""Seconds from the step to another address within the page, as a click on a link takes it, to the frame behind the one
that has all lines."""


@contextmanager
def mlflow_server(home: Home) -> Iterator[str]:
    """MLflow on a socket in the home, as `ringleader up` starts it; its address."""
    service = Service.start(REAL.mlflow(home), home)
    try:
        service.wait_ready()
        yield mlflow_url(home)
    finally:
        service.end()


class MlflowRuns:
    """An experiment of MLflow's with so many finished runs, each with the curve of one metric.

    Args:
        url: of MLflow.
        curve: (run, step) → value.
    """

    def __init__(self, url: str, runs: int, points: int, curve: Callable[[int, int], float]) -> None:
        way = ClientRoute.to(url)
        transport = httpx.HTTPTransport(uds=way.uds)
        with httpx.Client(base_url=way.url, transport=transport, timeout=60, trust_env=False) as client:
            self._client = client
            self._experiment = str(self._told("experiments/create", name="bench")["experiment_id"])
            self._runs = [self._filled(number, points, curve) for number in range(runs)]

    def _filled(self, number: int, points: int, curve: Callable[[int, int], float]) -> str:
        asked = {"experiment_id": self._experiment, "run_name": f"n{number}", "start_time": BEGAN_MS}
        run_id = str(self._told("runs/create", **asked)["run"]["info"]["run_id"])
        values = [
            {"key": METRIC, "value": curve(number, step), "timestamp": BEGAN_MS + 500 * step, "step": step}
            for step in range(1, points + 1)
        ]
        self._told("runs/log-batch", run_id=run_id, metrics=values)
        self._told("runs/update", run_id=run_id, status="FINISHED", end_time=BEGAN_MS + 500 * points)
        return run_id

    def _told(self, call: str, **body: object) -> dict[str, Any]:
        answer = self._client.post(f"api/2.0/mlflow/{call}", json=body)
        if answer.status_code != httpx.codes.OK:
            raise PeerFailed(f"MLflow answered {call} with {answer.status_code}: {answer.text[:200]}")
        told: dict[str, Any] = answer.json()
        return told

    def drawn(self, page: "Page", url: str) -> float:
        """Seconds from the list of the runs to all their curves, on a page opened anew. Raises PeerFailed."""
        from playwright.sync_api import Error

        try:
            page.goto(f"{url}/mlflow/#/experiments/{self._experiment}/runs")
            page.reload()  # another fragment alone opens no page anew
            page.get_by_text(f"{len(self._runs)} matching runs").wait_for()
            return float(page.evaluate(DRAW, [self._address(), len(self._runs), DEADLINE_MS]))
        except Error as error:
            raise PeerFailed(f"MLflow's page does not draw {len(self._runs)} runs: {error}") from error

    def _address(self) -> str:
        told: dict[str, str | Sequence[str]] = {
            "runs": self._runs,
            "metric": METRIC,
            "experiments": [self._experiment],
            "plot_metric_keys": [METRIC],
        }
        shown = "plot_layout={}&x_axis=step&y_axis_scale=linear&line_smoothness=1&show_point=false"
        return (
            "/metric?" + "&".join(f"{name}={json.dumps(value)}" for name, value in told.items()) + f"&{shown}"
        )
