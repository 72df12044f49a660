"""The make-believe cluster with a supervisor that may be killed between any two of its deeds, and comes back."""

from dataclasses import dataclass, field

from membership_world import Process, World

from ringleader.elastic import Plan
from ringleader.elastic import events as ev
from ringleader.elastic import instructions as do


@dataclass
class MortalWorld(World):
    """`crash(n)`: the supervisor is killed when it should do another thing after n more. Its state was written down
    before that. What is told while it is away reaches nobody. Reports are written down together with the state.
    """

    deeds: int | None = None
    away: bool = False
    issued: set[tuple[int, int]] = field(default_factory=set)
    passed: list[str] = field(default_factory=list)
    returns: int = 0
    ghosts: set[str] = field(default_factory=set)

    def crash(self, deeds: int) -> None:
        self.deeds = deeds

    def vanish(self) -> None:
        """Killed while there was nothing to do."""
        self.away, self.deeds = True, None

    def tell(self, event: ev.Event) -> None:
        if not self.away:
            super().tell(event)

    def obey(self, out: tuple[do.Instruction, ...]) -> None:
        written = [i for i in out if isinstance(i, do.Report | do.End)]
        super().obey(tuple(written))
        for deed in out:
            if deed not in written and self.able():
                super().obey((deed,))
            elif isinstance(deed, do.Form):
                self.form(deed.plan)  # it is checked, and reaches nobody

    def able(self) -> bool:
        """One deed more, if there is time for one."""
        if self.away:
            return False
        if self.deeds == 0:
            self.vanish()
        elif self.deeds is not None:
            self.deeds -= 1
        return not self.away

    def form(self, plan: Plan) -> None:
        assert (plan.start, plan.generation) not in self.issued, "a generation was issued twice"
        assert all(generation < plan.generation for _, generation in self.issued)
        self.issued.add((plan.start, plan.generation))
        if not (plan.start_transaction or self.state.committed):
            self.line = ()  # first steps that nobody was told of are gone with all who had made them
        super().form(plan)

    def deliver(self, plan: Plan, members: list[Process]) -> None:
        """To each member is a deed of its own."""
        super().deliver(plan, [m for m in members if self.able()])

    def restart(self) -> None:
        """Ray starts it again: it looks for everybody it had written down, and lets go of everybody else."""
        if not self.away:
            return
        self.away, self.returns = False, self.returns + 1
        self.notices.clear()
        known = {w.id for w in self.state.workers}
        for name in self.reached() - known:
            self.processes[name].alive = self.processes[name].computing = False
        start = self.state.start + 1
        found = tuple(self.find(w.id) for w in self.state.workers)
        self.tell(ev.Returned(start, found, self.now))
        for worker in self.passed:
            super().pass_barrier(worker)

    def check(self) -> None:
        super().check()
        if not (self.away or self.end):
            strangers = self.reached() - {w.id for w in self.state.workers} - self.ghosts
            assert not strangers, "a place was given away before its process was gone"

    def find(self, worker: str) -> ev.WorkerFound:
        process = self.processes.get(worker)
        if process is None:
            return ev.WorkerFound(worker, "none")
        if process.cut:
            return ev.WorkerFound(worker, "silent")
        if not process.alive:
            return ev.WorkerFound(worker, "gone")
        return ev.WorkerFound(worker, "here", process.generation, process.said if process.parked else None)

    def hear(self) -> None:
        if not self.away:
            super().hear()

    def cut_off(self, node: int) -> None:
        """Its processes may outlive that they are given up: nobody can end them."""
        super().cut_off(node)
        self.ghosts |= {name for name, process in self.processes.items() if process.cut}

    def reached(self) -> set[str]:
        return {name for name in self.alive() if not self.processes[name].cut}

    def suffer(self, moment: str, deeds: int) -> None:
        match moment:
            case "crash":
                self.crash(deeds)
            case "vanish":
                self.vanish()
            case "restart":
                self.restart()

    def calm(self) -> None:
        self.deeds = None
        self.restart()
        super().calm()

    def finish(self) -> None:
        """It is killed at each barrier that somebody passes, and comes back."""
        for worker in self.current():
            self.vanish()
            self.leave(worker)
            self.restart()

    def pass_barrier(self, worker: str) -> None:
        self.passed.append(worker)
        super().pass_barrier(worker)
