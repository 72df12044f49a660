"""The curves of the recipes: `train` runs some in this process and keeps what they record, `draw` makes pictures.

Called as `python scripts/curves.py train NAME… [PARAM=VALUE…]` and `python scripts/curves.py draw`. What was recorded
lies in docs/curves as NAME.json, with NAME.svg beside it; docs/how-to/recipes.md shows them.
"""

import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from html import escape
from importlib import import_module
from pathlib import Path
from statistics import fmean
from tempfile import TemporaryDirectory
from typing import Any

import torch
import yaml

from ringleader.bench.training.picture import INKS, Axis
from ringleader.spec import JobSpec
from ringleader.train.local import run_local

ROOT = Path(__file__).resolve().parents[1]
JOBS, CURVES = ROOT / "jobs" / "ringleader_jobs", ROOT / "docs" / "curves"
LOSSES = ("loss", "test_loss", "eval_loss")
SHARES = ("accuracy", "found", "understood")
DISTANCES = ("distance",)
"""Recorded names that are drawn: nats on the left, shares from 0 to 1 or distances on the right."""
MOST_POINTS = 80
HEIGHT, PANEL, LEFT, TOP, BOTTOM = 230, 380, 48, 40, 190
STYLE = """
text { font-family: system-ui, "Segoe UI", Helvetica, Arial, sans-serif; fill: var(--ink); font-size: 12px }
.page { fill: var(--page) } .quiet { fill: var(--quiet) } .grid { stroke: var(--grid) }
.line { fill: none; stroke: var(--held); stroke-width: 2; stroke-linejoin: round } .held { fill: var(--held) }
.step { stroke: var(--quiet); stroke-width: 1 }
"""
HELD = ("#2a78d6", "#5b9eee")
Points = list[tuple[float, float]]


def main() -> int:
    match sys.argv[1:]:
        case ["train", *words] if words:
            params = {
                name: yaml.safe_load(value)
                for name, _, value in (w.partition("=") for w in words if "=" in w)
            }
            for name in (word for word in words if "=" not in word):
                record(name, params)
        case ["draw"]:
            for file in sorted(CURVES.glob("*.json")):
                file.with_suffix(".svg").write_text(svg(json.loads(file.read_text())), encoding="utf-8")
        case _:
            print("curves: write train NAME… [PARAM=VALUE…], or draw.", file=sys.stderr)
            return 2
    return 0


def record(name: str, params: Mapping[str, Any]) -> None:
    """Train a recipe by its job file and keep its curves."""
    torch.set_num_threads(1)  # as a worker has
    spec = JobSpec.load(JOBS / f"{name}.yaml")
    # Packages are those that are installed here.
    spec = spec.model_copy(update={"params": {**spec.params, **params}, "requirements": None})
    with TemporaryDirectory() as place:
        finished, told = run_local(spec, import_module(f"ringleader_jobs.{name}").train, Path(place))
    drawn = {
        metric: [(step, values[metric]) for step, values in sorted(told.values.items()) if metric in values]
        for metric in (*LOSSES, *SHARES, *DISTANCES)
    }
    shown = {n: value for n, value in spec.params.items() if n not in ("text", "train", "test")}
    kept = {
        "recipe": name,
        "params": shown,
        "batch": spec.batch.global_size,
        "steps": finished.steps,
        "curves": {metric: thinned(points) for metric, points in drawn.items() if points},
    }
    CURVES.mkdir(exist_ok=True)
    (CURVES / f"{name}.json").write_text(json.dumps(kept) + "\n")


def thinned(points: Points) -> Points:
    """Means over stretches of steps, where there are more points than a picture shows."""
    size = -(-len(points) // MOST_POINTS)
    stretches = [points[start : start + size] for start in range(0, len(points), size)]
    return [(stretch[-1][0], round(fmean(value for _, value in stretch), 4)) for stretch in stretches]


def svg(kept: Mapping[str, Any]) -> str:
    """The picture of one recipe, for light and dark pages: losses, and beside them shares where there are some."""
    panels = [
        (title, {name: kept["curves"][name] for name in names if name in kept["curves"]})
        for title, names in (
            ("loss, nats", LOSSES),
            ("share of what is held out", SHARES),
            ("distance of what is held out", DISTANCES),
        )
    ]
    panels = [(title, curves) for title, curves in panels if curves]
    width = PANEL * len(panels)
    light, dark = (
        " ".join(f"--{name}: {tints[n]};" for name, tints in {**INKS, "held": HELD}.items()) for n in (0, 1)
    )
    theme = f"svg {{ {light} }} @media (prefers-color-scheme: dark) {{ svg {{ {dark} }} }}"
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {HEIGHT}" role="img">',
        f"<title>{escape(kept['recipe'])}: curves over {kept['steps']} steps</title>",
        f"<style>{theme}{STYLE}</style>",
        f'<rect class="page" width="{width}" height="{HEIGHT}"/>',
    ]
    for number, (title, curves) in enumerate(panels):
        parts += _panel(number * PANEL, title, curves, kept["steps"])
    return "\n".join([*parts, "</svg>"]) + "\n"


def _panel(at: int, title: str, curves: Mapping[str, Points], steps: int) -> Iterator[str]:
    values = [value for points in curves.values() for _, value in points]
    left, right = at + LEFT, at + PANEL - 24
    across = Axis.over(0, steps, left, right, 4)
    up = Axis.over(0, max(values), BOTTOM, TOP, 4)
    yield f'<text x="{left}" y="{TOP - 18}">{title}</text>'
    for tick in up.ticks():
        y = up.at(tick)
        yield f'<line class="grid" x1="{left}" x2="{right}" y1="{y:.1f}" y2="{y:.1f}"/>'
        yield f'<text class="quiet" x="{left - 8}" y="{y + 4:.1f}" text-anchor="end">{tick:g}</text>'
    for tick in across.ticks():
        yield f'<text class="quiet" x="{across.at(tick):.1f}" y="{BOTTOM + 18}" text-anchor="middle">{tick:g}</text>'
    yield f'<text class="quiet" x="{(left + right) / 2}" y="{BOTTOM + 34}" text-anchor="middle">steps</text>'
    for number, (name, points) in enumerate(curves.items()):
        of_steps = name == "loss"
        yield f'<polyline class="line{" step" * of_steps}" points="{_path(points, across, up)}"/>'
        kind = "quiet" if of_steps else "held"
        label = f"{name} {points[-1][1]:.3f}"
        # Away from the line's end.
        y = TOP + 14 + 16 * number if points[-1][1] < points[0][1] else BOTTOM - 10 - 16 * number
        yield f'<text class="{kind}" x="{right}" y="{y}" text-anchor="end">{label}</text>'


def _path(points: Sequence[Sequence[float]], across: Axis, up: Axis) -> str:
    return " ".join(f"{across.at(x):.1f},{up.at(y):.1f}" for x, y in points)


if __name__ == "__main__":
    sys.exit(main())
