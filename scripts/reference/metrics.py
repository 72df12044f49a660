"""The page of the metrics: those of the control plane from its registry, those of a job from where records are made."""

import ast
import tempfile
from collections.abc import Iterator
from pathlib import Path

from prometheus_client import Metric

from reference.markdown import code, page, prose, sentence, table
from reference.sources import functions, modules, text_of

LEAD = """There are two kinds: metrics of the control plane, for Prometheus, and metrics of a job, by step."""
CONTROL_PLANE = """`GET /metrics` in Prometheus's text format. It requires a credential with the role viewer in all
projects."""
OF_A_JOB = """`GET /api/v1/jobs/{job_id}/metrics`, `job.metrics(name)`, `ringleader metrics`, the page, and the job's
run in MLflow: one value for each settled step, none of which is rolled back. A job also has the metrics that its
program logs: the keyword values of `session.step`, and the scores of `session.evaluate`."""
WORDS = {
    "loss": "The weighted mean loss over all rows of the step. With phases, this is the loss of the last phase; "
    "`loss/0`, `loss/1`, … are those of each.",
    "lr": "The learning rate of the update; `lr/0`, `lr/1`, … if optimizers have several parameter groups.",
    "samples_per_s": "Rows of the step divided by the time since the previous step.",
    "world_size": "The number of workers.",
    "comm_exposed_fraction": "The share of time that workers waited for the exchange.",
    "exchange_fraction": "The share of time that the worker with the shortest wait waited for the exchange. Only in "
    "jobs with several workers that neither lease items nor pass tokens; the last step of a job has none.",
    "idle_fraction": "The share of time that workers waited for slower ones: how much longer each waited for the "
    "exchange than the worker with the shortest wait, as the mean over all workers. Present with `exchange_fraction`.",
    "loading_fraction": "The share of time that workers waited for a batch, or loaded one while "
    "gradients were in flight.",
    "comm_bytes": "Bytes of coded gradients and sparse rows that one worker sent, if there are any.",
    "loss_scale": "The loss scale, with `precision: fp16`.",
    "skipped_updates": "With `precision: fp16`, the steps so far whose gradient overflowed; they changed no weight.",
    "staleness_mean": "If workers lease items: how many updates were made between the pull of the weights and the "
    "update with the gradient, as the mean over the step's items.",
    "staleness_max": "The same, as the maximum over the step's items.",
}
"""The platform's own metrics of a job. A test finds each where records are made."""


def metrics_page() -> str:
    ours = [
        (
            code(one.name + ("_total" if one.type == "counter" else "")),
            one.type,
            labels_of(one),
            prose(one.documentation),
        )
        for one in sorted(families(), key=lambda one: one.name)
    ]
    plane = f"## Of the control plane\n\n{CONTROL_PLANE}\n\n" + table(
        ("metric", "kind", "labels", "what it says"), ours
    )
    rows = [(code(name), sentence(words)) for name, words in WORDS.items()]
    return page(
        "Metrics", LEAD, plane, f"## Of a job\n\n{OF_A_JOB}\n\n" + table(("metric", "what it says"), rows)
    )


def families() -> list[Metric]:
    """The metrics of a control plane that has just been built."""
    from ringleader_api.app import create_app
    from ringleader_api.backend import RayBackend
    from ringleader_api.settings import Settings

    with tempfile.TemporaryDirectory() as home:
        app = create_app(Settings(home=Path(home)), RayBackend("", warm_per_node=0))
        try:
            return list(app.state.control.telemetry.registry.collect())
        finally:
            app.state.control.close()


def labels_of(family: Metric) -> str:
    """The labels that the code gives a metric, by commas."""
    for call in _calls_with(family.name):
        given = [*call.args, *(word.value for word in call.keywords)]
        for one in given:
            names = (
                [text.value for text in one.elts if isinstance(text, ast.Constant)]
                if isinstance(one, ast.Tuple)
                else []
            )
            if names and all(isinstance(name, str) for name in names):
                return ", ".join(map(code, names))
    return ""


def recorded() -> Iterator[str]:
    """The keys of what the engine writes into a step's record beside the program's own values."""
    for module in modules().values():
        if not module.name.startswith("ringleader.train"):
            continue
        for function in functions(module):
            if function.returns is not None and function.name in ("told", "traffic", "waits_of"):
                if ast.unparse(function.returns) == "dict[str, float]":
                    yield from _keys(function, module.name)
            elif any(isinstance(n, ast.Name) and n.id == "StepRecord" for n in ast.walk(function)):
                yield from _keys(function, module.name)


def _keys(function: ast.AST, name: str) -> Iterator[str]:
    for node in ast.walk(function):
        if isinstance(node, ast.Dict):
            yield from (
                text for key in node.keys if key is not None and (text := text_of(key, modules()[name]))
            )


def _calls_with(name: str) -> Iterator[ast.Call]:
    for module in modules().values():
        if module.name.startswith("ringleader_api"):
            for node in ast.walk(module.tree):
                if isinstance(node, ast.Call) and node.args and text_of(node.args[0], module) == name:
                    yield node
