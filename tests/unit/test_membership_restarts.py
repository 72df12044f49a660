"""Groups whose program starts anew in every generation: who is waited for, what is spent, what is told."""

from dataclasses import replace

from ringleader.elastic import AttemptRules, Membership, begin, handle
from ringleader.elastic import events as ev
from ringleader.elastic import instructions as do
from ringleader.elastic.returning import UNREACHED


class Group:
    """A membership of hosted members, and all that it instructed."""

    def __init__(self, workers_min: int = 2, workers_max: int = 2, max_failures: int = 1) -> None:
        rules = AttemptRules(1, 4, restarts=True, max_failures=max_failures)
        self.now = 0.0
        self.state, self.out = begin(rules, workers_min=workers_min, workers_max=workers_max, now=0.0)

    def tell(self, event: ev.Event) -> Membership:
        self.state, out = handle(self.state, replace(event, now=self.now))
        self.out += out
        return self.state

    def park(self, worker: str, generation: int = 0, why: str = "") -> None:
        self.tell(ev.Parked(worker, 0.0, ev.ParkReport(generation, 0, 0, why)))

    def run(self) -> None:
        """The first generation, with the program at work on all."""
        for worker in [w.id for w in self.state.workers]:
            self.park(worker)
        self.work()

    def work(self) -> None:
        for member in self.state.members:
            self.tell(ev.Healed(member.id, self.state.generation, 0.0))

    def reported(self, kind: str) -> list[dict[str, object]]:
        return [i.data for i in self.out if isinstance(i, do.Report) and i.type == kind]

    @property
    def causes(self) -> list[str]:
        return [i.plan.cause for i in self.out if isinstance(i, do.Form)]


def test_after_a_loss_members_wait_for_the_replacement_that_has_a_place() -> None:
    group = Group(workers_min=1)
    group.run()
    group.tell(ev.Lost("w1", "died (SIGKILL)", 0.0))
    group.park("w0", 1)
    group.now = 4.0
    group.tell(ev.Tick(0.0, 4.0))
    assert group.causes == ["start"], "one start of the program is cheaper than two"
    group.park("w2")
    assert group.causes == ["start", "lost"]
    assert group.state.plan is not None
    assert group.state.plan.members == ("w0", "w2")


def test_members_wait_neither_for_long_nor_for_who_has_no_place() -> None:
    late = Group(workers_min=1)
    late.run()
    late.tell(ev.Lost("w1", "died", 0.0))
    late.park("w0", 1)
    late.now = 5.1
    late.tell(ev.Tick(0.0, 4.0))
    assert late.causes == ["start", "lost"]
    nowhere = Group(workers_min=1)
    nowhere.run()
    nowhere.tell(ev.Lost("w1", "died", 0.0))
    nowhere.tell(ev.Waiting("w2", 0.0))
    nowhere.park("w0", 1)
    assert nowhere.causes == ["start", "lost"]


def test_a_loss_spends_nothing_and_is_told_as_recovered_without_lost_steps() -> None:
    group = Group(max_failures=0)
    group.run()
    group.tell(ev.Lost("w1", "died (SIGKILL)", 0.0))
    # Its program failed because that of w1 was gone.
    group.park("w0", 1, why="train.py ended with exit code 1")
    group.park("w2")
    group.work()
    assert group.state.ended is None
    assert group.state.spent == 0
    assert group.reported("program.failed") == []
    (recovered,) = group.reported("recovered")
    assert recovered.keys() >= {"total_s", "regroup_s"}
    assert "steps_lost" not in recovered, "what the program computes again only the program knows"


def test_a_program_that_fails_by_itself_spends_a_failure_and_too_many_end_the_attempt() -> None:
    group = Group()
    group.run()
    group.park("w1", 1, why="train.py ended with exit code 3 on w1")
    assert [i for i in group.out if isinstance(i, do.Interrupt)] == [do.Interrupt("w0", 1)]
    group.park("w0", 1)
    assert group.reported("program.failed") == [
        {"worker": "w1", "rank": 1, "why": "train.py ended with exit code 3 on w1", "failures": 1, "most": 1}
    ]
    assert group.causes == ["start", "lost"]
    group.work()
    group.now = 1.0
    group.park("w0", 2, why="first")
    group.now = 1.1
    group.park("w1", 2, why="second, of the first")
    ended = group.state.ended
    assert ended is not None
    assert (ended.outcome, ended.reason) == ("failed", "entrypoint_raised")
    assert ended.message == "first It failed 2 times (max_failures: 1)."


def test_a_plan_that_reached_nobody_is_no_failure_of_the_program() -> None:
    group = Group(max_failures=0)
    group.run()
    group.park("w0", 1, why=UNREACHED)
    group.park("w1", 1)
    assert group.state.ended is None
    assert group.causes == ["start", "lost"]


def test_a_worker_whose_program_runs_has_proven_itself() -> None:
    group = Group(max_failures=0)
    for worker in ("w0", "w1"):
        group.park(worker)
    group.tell(ev.Lost("w1", "died", 0.0))
    assert group.state.ended is not None, "before that its death counts"
    group = Group(max_failures=0)
    group.run()
    group.tell(ev.Lost("w1", "died", 0.0))
    assert group.state.ended is None


def test_a_pause_ends_behind_a_plan_in_which_nothing_runs() -> None:
    group = Group()
    group.run()
    group.tell(ev.Pause(60.0, 0.0))
    for generation in (1, 2):
        for worker in ("w0", "w1"):
            group.park(worker, generation)
    assert group.causes == ["start", "pause"]
    assert group.state.ended is not None
    assert group.state.ended.outcome == "paused"
