"""`ringleader bench`: run a benchmark and print its figures, as a table or as one JSON object a line."""

import argparse
import sys
from collections.abc import Callable, Iterator, Sequence

from ringleader.bench.line import Figure
from ringleader.bench.machine import describe
from ringleader.bench.registry import BENCHMARKS, SUMMARIES, Benchmark, Wish, load
from ringleader.bench.table import Table
from ringleader.errors import RingleaderError

OK, MISSED, USAGE = 0, 1, 2


def main(argv: Sequence[str], find: Callable[[str], Benchmark] = load) -> int:
    """Run what `argv` asks for. Returns 0, 1 when a promise broke or a run failed, 2 for wrong usage.

    A target that was missed is printed as such and is no failure: the figure is the result.
    """
    parser = _parser()
    try:
        asked = parser.parse_args(list(argv))
        benchmark = find(asked.name)
        unknown = [name for name in asked.case if not any(map(Wish((name,)).wants, benchmark.CASES))]
        if unknown:
            parser.error(
                f"{asked.name} has no case {', '.join(unknown)}; choose from {', '.join(benchmark.CASES)}"
            )
    except SystemExit as end:
        # argparse leaves this way for --help too, with code 0.
        return USAGE if end.code else OK
    wish = Wish(cases=tuple(asked.case), full=asked.full, seed=asked.seed)
    try:
        _print(asked, benchmark.run(wish))
    except RingleaderError as error:
        print(f"ringleader bench {asked.name}: {error}", file=sys.stderr)
        return MISSED
    return OK


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="ringleader bench",
        description="Benchmark Ringleader, side by side with its alternatives where there are any.",
        epilog="benchmarks:\n" + "\n".join(f"  {name:<12}{SUMMARIES[name]}" for name in sorted(BENCHMARKS)),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "name", metavar="NAME", choices=sorted(BENCHMARKS), help="the benchmark to run, from the list below"
    )
    parser.add_argument(
        "--json", action="store_true", help="print one JSON object per line instead of a table"
    )
    parser.add_argument(
        "--full", action="store_true", help="measure more runs; may take longer than ten minutes"
    )
    parser.add_argument(
        "--case",
        action="append",
        default=[],
        help="run only this case and its variants (cifar: cifar-L2, cifar-L8); repeat for several",
    )
    parser.add_argument("--seed", type=int, default=0, help="seed of all random choices (default 0)")
    return parser


def _print(asked: argparse.Namespace, figures: Iterator[Figure]) -> None:
    """Print each figure as soon as it is measured: a long run that is stopped has printed what it had."""
    machine, command = describe(), _command(asked)
    table = Table()
    if not asked.json:
        print(f"{machine}\n{command}\n")
    for figure in figures:
        line = figure.line(bench=asked.name, machine=machine, command=command)
        if asked.json:
            print(line.as_json(), flush=True)
        else:
            for text in table.add(line, figure.cell):
                print(text, flush=True)
        # On standard error: standard output stays one JSON object a line.
        if figure.settings:
            print(f"  {figure.settings}", file=sys.stderr, flush=True)
    for text in table.wide():
        print(text)


def _command(asked: argparse.Namespace) -> str:
    words = ["ringleader", "bench", asked.name, *(f"--case {case}" for case in asked.case)]
    words += ["--full"] if asked.full else []
    words += [f"--seed {asked.seed}"] if asked.seed else []
    return " ".join([*words, "--json"] if asked.json else words)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
