"""The command that runs the benchmarks, in a process of their own."""

import importlib.util
import subprocess
import sys

import click

from ringleader.errors import RingleaderError


class BenchMissing(RingleaderError):
    """The benchmarks' packages are not installed."""

    code = "bench_missing"


# Every word is the benchmark's own, --help too: it has a parser for them.
@click.command(
    context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False}, add_help_option=False
)
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def bench(arguments: tuple[str, ...]) -> int:
    """Run a benchmark (`ringleader bench --help` lists them)."""
    # Looked for and not imported: the command line loads neither.
    if importlib.util.find_spec("torch") is None or importlib.util.find_spec("ray") is None:
        raise BenchMissing(
            "the benchmarks need the packages torch and ray, which are not both installed.",
            hint='Install them with: pip install "ringleader[engine,server]".',
        )
    # Its own process: benchmarks load torch and ray, the command line never does.
    return subprocess.run([sys.executable, "-m", "ringleader.bench.main", *arguments], check=False).returncode
