"""What the membership machine says again after its supervisor was killed: only what was not heard."""

from dataclasses import replace

from membership_world import World

from ringleader.elastic import Membership, handle
from ringleader.elastic import events as ev
from ringleader.elastic import instructions as do

NOW = 100.0


def back(state: Membership, *found: ev.WorkerFound) -> tuple[Membership, tuple[do.Instruction, ...]]:
    return handle(state, ev.Returned(state.start + 1, found, NOW))


def deeds(out: tuple[do.Instruction, ...]) -> list[do.Instruction]:
    return [i for i in out if not isinstance(i, do.Report)]


def here(world: World, *, generation: int = 1) -> list[ev.WorkerFound]:
    return [ev.WorkerFound(w.id, "here", generation) for w in world.state.workers]


def running(**changes: int) -> World:
    world = World.of(**{"workers_min": 1, "workers_max": 3, "shards": 4, **changes})
    world.calm()
    return world


def test_who_finds_everybody_at_work_disturbs_nobody():
    world = running()
    state, out = back(world.state, *here(world))
    assert deeds(out) == []
    assert (state.generation, state.plan, state.start) == (1, world.plan, 2)
    (told,) = [i for i in out if isinstance(i, do.Report)]
    assert (told.type, told.data) == ("supervisor.returned", {"start": 2, "gone": []})


def test_a_worker_that_died_meanwhile_is_lost_at_once_and_replaced():
    world = running()
    first, second, third = here(world)
    gone = replace(second, process="gone")
    state, out = back(world.state, first, gone, third)
    assert deeds(out) == [do.Start("w3", "worker"), do.Interrupt("w0", 1), do.Interrupt("w2", 1)]
    for worker in ("w0", "w2"):
        state, out = handle(state, ev.Parked(worker, NOW, ev.ParkReport(1, 5, 5, "broken pipe")))
    (formed,) = [i.plan for i in out if isinstance(i, do.Form)]
    assert (formed.start, formed.generation, formed.members) == (2, 2, ("w0", "w2"))


def test_an_interrupt_that_may_not_have_been_heard_is_said_again():
    world = running()
    state, out = handle(world.state, ev.Lost("w1", "died", NOW))
    assert do.Interrupt("w0", 1) in out
    _, again = back(state, *[f for f in here(world) if f.worker != "w1"], ev.WorkerFound("w3", "none"))
    assert deeds(again) == [do.Start("w3", "worker"), do.Interrupt("w0", 1), do.Interrupt("w2", 1)]


def test_a_kill_that_may_not_have_been_done_is_done_again():
    world = running()
    state, _ = handle(world.state, ev.Evict("w1", "frozen", NOW))
    for process in ("here", "silent"):
        others = [f for f in here(world) if f.worker != "w1"]
        _, again = back(state, *others, ev.WorkerFound("w1", process), ev.WorkerFound("w3", "none"))
        assert do.Kill("w1", "frozen") in again


def test_a_plan_that_did_not_reach_a_joiner_is_given_up_for_the_next_one():
    world = running(workers_min=1, workers_max=2)
    joiner = ev.Parked("w1", NOW, ev.ParkReport(0, 0, 0, ""))
    members = [ev.WorkerFound("w0", "here", 1), ev.WorkerFound("w1", "here", 0, joiner)]
    state = replace(world.state, plan=replace(world.plan, start_transaction=7))
    state, out = back(state, *members)
    assert deeds(out) == [do.Interrupt("w0", 1)]
    state, out = handle(state, ev.Parked("w0", NOW, ev.ParkReport(1, 7, 7, "interrupted")))
    (formed,) = [i.plan for i in out if isinstance(i, do.Form)]
    assert (formed.generation, formed.members, formed.heals) == (2, ("w0", "w1"), (("w1", "w0"),))


def test_a_new_server_that_a_plan_did_not_reach_holds_nothing():
    world = running(workers_min=1, workers_max=1, servers=2, backups=1)
    state = replace(world.state, plan=replace(world.plan, start_transaction=7))
    found = [f for f in here(world) if f.worker != "s1"]
    unreached = ev.WorkerFound("s1", "here", 0, ev.Parked("s1", NOW, ev.ParkReport(0, 0, 0, "")))
    state, _ = back(state, *found, unreached)
    server = state.find("s1")
    assert server is not None
    assert (server.ready, server.step) == (True, 0)


def test_who_could_not_write_down_its_last_plan_ends_the_attempt_for_the_next_one():
    world = running()
    state, out = back(world.state, *here(world, generation=2))
    assert state.ended is not None
    assert (state.ended.reason, out) == ("platform_error", (state.ended,))


def test_who_does_not_answer_is_killed_and_who_is_still_starting_is_waited_for():
    world = running()
    state, _ = handle(world.state, ev.Lost("w1", "died", NOW))
    silent = [ev.WorkerFound(w.id, "silent") for w in state.workers]
    _, out = back(state, *silent)
    assert {i.worker: i.cause for i in out if isinstance(i, do.Kill)} == {"w0": "frozen", "w2": "frozen"}


def test_who_dies_before_it_joined_is_not_missed_once_somebody_has_finished():
    world = running(max_failures=0)
    world.commit()
    world.die("w2")
    world.hear()
    for worker in ("w0", "w1"):
        world.sense(worker)
    assert world.plan.members == ("w0", "w1")
    world.tell(ev.Finished("w0", "same", world.now))
    world.die("w3")
    world.hear()
    world.tell(ev.Finished("w1", "same", world.now))
    assert world.end.outcome == "succeeded"
