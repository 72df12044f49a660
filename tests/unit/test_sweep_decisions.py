"""A sweep's decisions: at work, promoted, paused and ended, whatever the scores are and in whatever order they come."""

from collections import Counter
from dataclasses import replace
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ringleader.errors import SpecInvalid
from ringleader.spec.sweep import POINTS_BYTES, TEMPLATE_BYTES, SweepSpec
from ringleader.wire.sweeps import SweepState, TrialState
from ringleader_api.scheduling.sweep_points import points_of
from ringleader_api.scheduling.sweeps import (
    FIRST_FAILURES,
    MOST_SUBMITTED,
    CancelTrial,
    CloseSweep,
    EndSweep,
    PauseTrial,
    PromoteTrial,
    ResumeTrial,
    SubmitTrial,
    SweepSnapshot,
    Trial,
    decide_sweep,
    leader_of,
    winner_of,
)

SWEEP = {
    "name": "lr",
    "template": {"entrypoint": "ringleader_jobs.digits:train"},
    "space": {"params.lr": {"log_uniform": [1e-4, 1e-1]}, "params.width": {"int": [8, 64]}},
    "trials": 9,
    "metric": {"name": "loss"},
}


def fresh(trials: int, **how: object) -> SweepSnapshot:
    return SweepSnapshot(
        SweepState.RUNNING,
        [Trial(number, TrialState.WAITING) for number in range(trials)],
        **how,  # type: ignore[arg-type]
    )


class Run:
    """A sweep that is carried out in memory: whose turn it is to reach a rung, and who fails, is drawn."""

    def __init__(
        self, sweep: SweepSnapshot, scores: list[list[float]], draw: Random, fails: float = 0.0
    ) -> None:
        self.trials = {one.number: one for one in sweep.trials}
        self.sweep, self.scores, self.draw, self.fails = sweep, scores, draw, fails
        self.promotions: Counter[tuple[int, int]] = Counter()
        self.winner: int | None = None

    def to_the_end(self, *, together: bool = False) -> int | None:
        """Carry out decisions until the sweep is closed. `together`: all at work report before the next decision."""
        for _ in range(10_000):
            sweep = replace(self.sweep, trials=list(self.trials.values()))
            acts = decide_sweep(sweep)
            for act in acts:
                if isinstance(act, CloseSweep):
                    return self.winner
                self._carry_out(sweep, act)
            assert (
                sum(one.at_work for one in self.trials.values()) <= self.sweep.parallel
                or self.sweep.state.ended
            )
            stopping = [one for one in self.trials.values() if one.state is TrialState.STOPPING]
            for one in stopping:
                self.trials[one.number] = replace(one, state=TrialState.PAUSED)
            moving = [
                one for one in self.trials.values() if one.state is TrialState.WORKING and not one.arrived
            ]
            self.draw.shuffle(moving)
            for one in moving if together else moving[:1]:
                self._report(one)
            assert acts or moving or stopping, "nothing moves"
        raise AssertionError("it does not end")

    def _report(self, one: Trial) -> None:
        if self.draw.random() < self.fails:
            self.trials[one.number] = replace(one, state=TrialState.FAILED, begun=True)
            return
        scores = tuple(self.scores[one.number][: one.rung + 1])
        state = TrialState.SUCCEEDED if one.rung == self.sweep.rungs else one.state
        self.trials[one.number] = replace(one, scores=scores, state=state)

    def _carry_out(self, sweep: SweepSnapshot, act: object) -> None:
        if isinstance(act, EndSweep):
            self.winner = act.winner
            self.sweep = replace(self.sweep, state=SweepState.SUCCEEDED)
            return
        number = act.number  # type: ignore[attr-defined]
        one = self.trials[number]
        if isinstance(act, PromoteTrial):
            self._promoted(sweep, one)
            one = replace(one, rung=one.rung + 1)
        state = {
            SubmitTrial: TrialState.WORKING, PromoteTrial: TrialState.WORKING, ResumeTrial: TrialState.WORKING,
            PauseTrial: TrialState.STOPPING, CancelTrial: TrialState.CANCELLED,
        }[type(act)]  # fmt: skip
        self.trials[number] = replace(one, state=state, held=isinstance(act, PauseTrial))

    def _promoted(self, sweep: SweepSnapshot, one: Trial) -> None:
        self.promotions[one.number, one.rung] += 1
        there = [t for t in sweep.trials if t.state is not TrialState.FAILED]
        reached = [t for t in there if len(t.scores) > one.rung]
        better = sum(t.scores[one.rung] < one.scores[one.rung] for t in reached)
        if len(reached) >= sweep.reduction:
            assert better < len(reached) // sweep.reduction
        else:
            assert better == 0
            assert not any(t.rung <= one.rung and not t.arrived and not t.state.ended for t in there)


histories = st.tuples(
    st.integers(1, 20), st.integers(0, 3), st.integers(2, 4), st.integers(1, 6), st.integers(0, 2**32)
)


@settings(max_examples=60, deadline=None)
@given(histories, st.sampled_from([0.0, 0.2, 1.0]))
def test_no_more_are_at_work_than_allowed_and_none_is_promoted_twice_or_from_below(
    drawn: tuple[int, int, int, int, int], fails: float
) -> None:
    trials, rungs, reduction, parallel, seed = drawn
    draw = Random(seed)
    scores = [[draw.random() for _ in range(rungs + 1)] for _ in range(trials)]
    sweep = fresh(trials, rungs=rungs, reduction=reduction, parallel=parallel)
    run = Run(sweep, scores, draw, fails)
    winner = run.to_the_end()
    assert all(count == 1 for count in run.promotions.values())
    assert all(one.state.ended for one in run.trials.values())
    ended = [one for one in run.trials.values() if one.state is TrialState.SUCCEEDED]
    assert (winner is None) == (not ended)
    if winner is not None:
        assert run.trials[winner].scores[-1] == min(one.scores[-1] for one in ended)
    if not rungs and not fails:
        assert len(ended) == trials


@settings(max_examples=25, deadline=None)
@given(st.integers(1, 20), st.integers(1, 3), st.integers(0, 2**32))
def test_scores_that_come_together_lead_to_one_winner_in_whatever_order_they_come(
    trials: int, rungs: int, seed: int
) -> None:
    draw = Random(seed)
    scores = [[draw.random() for _ in range(rungs + 1)] for _ in range(trials)]
    runs = [Run(fresh(trials, rungs=rungs, parallel=trials), scores, Random(order)) for order in range(3)]
    assert len({run.to_the_end(together=True) for run in runs}) == 1
    assert len({tuple(sorted(run.promotions)) for run in runs}) == 1


def test_a_trial_that_is_not_promoted_is_paused_and_goes_on_once_others_are_worse() -> None:
    one, other, third = (
        Trial(0, TrialState.WORKING, scores=(0.5,)),
        Trial(1, TrialState.WORKING),
        Trial(2, TrialState.WAITING),
    )
    sweep = SweepSnapshot(SweepState.RUNNING, [one, other, third], rungs=1, parallel=2)
    assert decide_sweep(sweep) == [PauseTrial(0)]
    one = replace(one, state=TrialState.PAUSED, held=True)
    assert decide_sweep(replace(sweep, trials=[one, other, third])) == [SubmitTrial(2)]
    other, third = (Trial(n, TrialState.PAUSED, scores=(0.6 + n,), held=True) for n in (1, 2))
    assert decide_sweep(replace(sweep, trials=[one, other, third])) == [PromoteTrial(0)]


def test_the_greatest_score_wins_where_it_is_to_be_maximized_and_equal_ones_go_by_number() -> None:
    trials = [Trial(n, TrialState.SUCCEEDED, scores=(score,)) for n, score in enumerate([0.1, 0.9, 0.9])]
    sweep = SweepSnapshot(SweepState.RUNNING, trials, maximize=True)
    assert (winner_of(sweep), leader_of(sweep)) == (1, 1)
    assert decide_sweep(sweep) == [EndSweep(1)]
    assert winner_of(replace(sweep, maximize=False)) == 0


def test_a_paused_sweep_pauses_all_and_resumes_what_it_has_paused() -> None:
    trials = [Trial(0, TrialState.WORKING), Trial(1, TrialState.PAUSED), Trial(2, TrialState.WAITING)]
    sweep = SweepSnapshot(SweepState.PAUSED, trials, parallel=3)
    assert decide_sweep(sweep) == [PauseTrial(0)]
    held = replace(trials[0], state=TrialState.PAUSED, held=True)
    going = replace(sweep, state=SweepState.RUNNING, trials=[held, *trials[1:]])
    assert decide_sweep(going) == [ResumeTrial(0), SubmitTrial(2)]
    assert decide_sweep(replace(going, parallel=1)) == [], "what somebody has paused keeps its place"


def test_a_round_submits_some_of_a_wide_sweep_and_the_next_round_more() -> None:
    sweep = fresh(40, parallel=40)
    assert decide_sweep(sweep) == [SubmitTrial(number) for number in range(MOST_SUBMITTED)]
    begun = [replace(one, state=TrialState.WORKING) for one in sweep.trials[:MOST_SUBMITTED]]
    going = replace(sweep, trials=[*begun, *sweep.trials[MOST_SUBMITTED:]])
    assert decide_sweep(going) == [SubmitTrial(MOST_SUBMITTED + number) for number in range(MOST_SUBMITTED)]


def test_trials_that_all_fail_before_a_first_step_end_the_sweep_and_others_are_not_submitted() -> None:
    failed = [Trial(n, TrialState.FAILED) for n in range(FIRST_FAILURES)]
    others = [Trial(FIRST_FAILURES + n, TrialState.WAITING) for n in range(5)]
    few = replace(fresh(8, parallel=2), trials=[*failed[1:], *others])
    assert decide_sweep(few) == [SubmitTrial(FIRST_FAILURES), SubmitTrial(FIRST_FAILURES + 1)]
    sweep = replace(few, trials=[*failed, *others])
    assert decide_sweep(sweep) == [EndSweep(None)]
    # One that may still come to its first step is waited for, and then all go on.
    starting = replace(others[0], state=TrialState.WORKING)
    assert decide_sweep(replace(sweep, trials=[*failed, starting, *others[1:]])) == []
    going = replace(starting, begun=True)
    assert decide_sweep(replace(sweep, trials=[*failed, going, *others[1:]])) == [
        SubmitTrial(FIRST_FAILURES + 1)
    ]


def test_an_ended_sweep_cancels_what_lives_and_then_closes() -> None:
    trials = [
        Trial(0, TrialState.PAUSED, held=True),
        Trial(1, TrialState.STOPPING),
        Trial(2, TrialState.WAITING),
    ]
    sweep = SweepSnapshot(SweepState.CANCELLED, trials)
    assert decide_sweep(sweep) == [CancelTrial(0)]
    assert decide_sweep(replace(sweep, trials=trials[2:])) == [CloseSweep()]


def parsed(**changes: object) -> SweepSpec:
    return SweepSpec.parse({**SWEEP, **changes})


@pytest.mark.parametrize("method", ["random", "sobol"])
def test_points_follow_from_the_seed_and_lie_within_their_ends(method: str) -> None:
    points, again = points_of(parsed(method=method)), points_of(parsed(method=method))
    assert points == again != points_of(parsed(method=method, seed=1))
    assert points is not None
    assert len(points) == 9
    assert all(1e-4 <= point["params.lr"] <= 1e-1 and 8 <= point["params.width"] <= 64 for point in points)
    # Half of a logarithmic range is below its geometric middle.
    assert 2 <= sum(point["params.lr"] < 10**-2.5 for point in points) <= 7
    assert len({point["params.lr"] for point in points}) == 9


def test_a_grid_has_every_combination_once_in_order() -> None:
    space = {"params.lr": {"values": [0.1, 0.2]}, "seed": {"int": [0, 2]}}
    points = points_of(parsed(method="grid", trials=None, space=space))
    assert points is not None
    assert [(p["params.lr"], p["seed"]) for p in points] == [(lr, s) for lr in (0.1, 0.2) for s in (0, 1, 2)]


def test_rungs_are_as_many_as_leave_one_trial() -> None:
    promotion = {"asha": {"min_steps": 10}}
    assert parsed(promotion=promotion, trials=27).rungs == (10, 30, 90)
    assert parsed(promotion=promotion, trials=2).rungs == (10,)
    assert parsed(promotion={"asha": {"rungs": [5, 50]}}).rungs == (5, 50)


def test_a_trial_is_the_template_with_its_values_and_labels() -> None:
    template = {**SWEEP["template"], "params": {"lr": 1, "deep": {"a": 1}}, "labels": {"team": "vision"}}  # type: ignore[dict-item]
    sweep = parsed(template=template, project="vision")
    made = sweep.job_file(3, {"params.lr": 0.1, "params.deep.b": 2, "seed": 5})
    assert made["params"] == {"lr": 0.1, "deep": {"a": 1, "b": 2}}
    assert made["labels"] == {"team": "vision", "sweep": "lr", "trial": "3"}
    assert (made["name"], made["project"], made["seed"]) == ("lr-3", "vision", 5)
    assert sweep.template["params"] == {"lr": 1, "deep": {"a": 1}}
    point = {"params.deep": {"b": 2}}
    sweep.job_file(0, point)["params"]["deep"]["b"] = 3
    assert point == {"params.deep": {"b": 2}}, "the options stay as they are"


@pytest.mark.parametrize(
    ("changes", "pointer"),
    [
        ({"trials": None}, "/trials"),
        ({"method": "grid"}, "/space/params.lr"),
        ({"space": {"params.lr": {"uniform": [1, 0]}}}, "/space/params.lr"),
        ({"space": {"params.lr": {"log_uniform": [0, 1]}}}, "/space/params.lr"),
        ({"space": {"params.lr": {"choice": [1], "values": [2]}}}, "/space/params.lr"),
        ({"space": {"name": {"choice": ["a"]}}}, "/space/name"),
        ({"space": {"params": {"choice": [{}]}, "params.lr": {"choice": [1]}}}, "/space/params.lr"),
        (
            {"space": {path: {"choice": [1]} for path in ("params.a", "params.a-b", "params.a.b")}},
            "/space/params.a.b",
        ),
        ({"space": {"params.a": {"choice": [1]}, "params.a.b.c": {"choice": [1]}}}, "/space/params.a.b.c"),
        ({"promotion": {"asha": {"rungs": [5, 5]}}}, "/promotion/asha/rungs"),
        ({"promotion": {"asha": {}}}, "/promotion/asha"),
        ({"metric": {"name": "loss", "goal": "least"}}, "/metric/goal"),
        ({"template": {**SWEEP["template"], "params": {"a": "x" * TEMPLATE_BYTES}}}, "/template"),  # type: ignore[dict-item]
        ({"space": {"params.lr": {"choice": ["x" * (POINTS_BYTES // 9)]}}}, "/space/params.lr"),
        ({"paralel": 3}, "/paralel"),
    ],
)
def test_a_wrong_sweep_file_is_refused_by_key(changes: dict[str, object], pointer: str) -> None:
    with pytest.raises(SpecInvalid, match="the sweep file is not valid") as refused:
        parsed(**changes)
    assert pointer in [found["pointer"] for found in refused.value.errors]


def test_a_value_below_a_key_that_is_no_mapping_is_refused() -> None:
    sweep = parsed(template={**SWEEP["template"], "sync": "ring"}, space={"sync.codec": {"choice": ["bf16"]}})  # type: ignore[dict-item]
    with pytest.raises(SpecInvalid, match=r"/template/sync: 'ring' has no keys"):
        sweep.job_file(0, {"sync.codec": "bf16"})
