"""`ringleader chaos`: inject seeded faults into a running job, and report how it recovered."""

import click

from ringleader.cli.find import find_job
from ringleader.cli.output import CommandSession, number, pairs, with_output
from ringleader.cli.terminal.completion import JOB
from ringleader.cli.terminal.numbers import FiniteRange
from ringleader.client.chaos import Act, Chaos, Toll
from ringleader.client.records import as_json
from ringleader.errors import RingleaderError, WaitTimeout
from ringleader.wire.faults import FAULTS, Fault

SETTLE_S = 15.0


class FaultUnknown(RingleaderError):
    """The name of a fault that does not exist."""

    code = "fault_unknown"


@click.command()
@JOB
@click.option("--seed", type=int, required=True, help="Seed of the random choice of faults and members.")
@click.option(
    "--faults", default="kill", help=f"Comma-separated faults, kill by default: {', '.join(FAULTS)}."
)
@click.option(
    "--acts", type=click.IntRange(min=1), default=10, help="Number of faults to inject (default 10)."
)
@click.option(
    "--every-s", type=FiniteRange(min=0.1), default=5.0, help="Mean seconds between faults (default 5)."
)
@click.option(
    "--for-s",
    type=FiniteRange(min=0.1, max=600),
    default=15.0,
    help="Seconds for which a worker is slow (default 15).",
)
@with_output
def chaos(
    session: CommandSession, job: str, *, seed: int, faults: str, acts: int, every_s: float, for_s: float
) -> int:
    """Inject faults into a running JOB and report how it recovers.

    Requires the operator role, and `debug: {faults: true}` in the job file or a control plane that allows faults, as
    with `ringleader up`. Exit code 1 if the job lost steps or failed.
    """
    found = find_job(session.client(), job)
    run = Chaos(found, seed=seed, faults=_kinds(faults), acts=acts, every_s=every_s, for_s=for_s)
    session.note(
        f"seed {seed}: injecting {acts} faults ({faults}) into {found.id}, about one every {every_s:g} s"
    )
    try:
        for act in run.acts():
            session.show(as_json(act), _line(act))
        run.settle(SETTLE_S)
    except KeyboardInterrupt:
        session.note("\nstopped injecting faults; the job keeps running.")
    except WaitTimeout:  # what the injected faults caused is reported all the same
        _report(session, run.toll())
        raise
    toll = run.toll()
    _report(session, toll)
    return int(toll.steps_lost > 0 or toll.state == "failed")


def _kinds(words: str) -> list[Fault]:
    given = [word.strip() for word in words.split(",") if word.strip()]
    wrong = [word for word in given if word not in FAULTS]
    if wrong or not given:
        raise FaultUnknown(
            f"unknown fault: {', '.join(wrong) or repr(words)}.", hint=f"Choose from {', '.join(FAULTS)}."
        )
    # In one order, each once: what a seed draws must not depend on how the option lists them.
    return [fault for fault in FAULTS if fault in given]


def _line(act: Act) -> str:
    return f"{act.time:%H:%M:%S}  step {act.step:<8} {act.fault:<10} {act.target:<10} {act.effect}"


def _report(session: CommandSession, toll: Toll) -> None:
    session.show(as_json(toll), lambda: _text(toll))


def _text(toll: Toll) -> str:
    facts = {
        "faults": toll.acts,
        "members lost": toll.lost,
        "recoveries": toll.recoveries,
        "longest recovery": f"{number(toll.worst_s)} s" if toll.recoveries else "",
        "new attempts": toll.attempts,
        "steps lost": toll.steps_lost,
        "job": f"{toll.state} at step {toll.step}",
    }
    return "\n" + pairs(facts)
