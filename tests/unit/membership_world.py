"""A make-believe cluster for the membership machine: processes that start, commit, break, die; instructions obeyed.

`World` plays the cooperative side and checks after every instruction what must always hold.
"""

from dataclasses import dataclass, field, replace

from ringleader.elastic import AttemptRules, Membership, Plan, begin, handle
from ringleader.elastic import events as ev
from ringleader.elastic import instructions as do


@dataclass
class Process:
    """A worker's process as it really is, which the machine only hears about. `updated`: the steps that the parameters
    it updates have applied; one more than `applied` where a server repeats a step. `new`: a server that has not got its
    part of the state. `line`: for each step it has applied, in which generation that was computed. `cut`: its node is
    cut off: it lives, and nobody hears it. `said`: with what it parked, while it waits. `donor`: whom it shadows;
    `in_sync`: it has the state of `applied` from there; `astray`: it will find that it has not. `lines`: it has been
    told what of the program is over, runs its lines and listens to nobody; `call`: to which call it has come. `gone`:
    it has passed the last barrier."""

    role: str
    generation: int = 0
    applied: int = 0
    updated: int = 0
    healed: bool = False
    computing: bool = False
    parked: bool = False
    alive: bool = True
    new: bool = True
    donor: str = ""
    pair: int = 0
    in_sync: bool = False
    astray: bool = False
    lines: bool = False
    call: int = 0
    interrupted: bool = False
    announced: bool = False
    plan: Plan | None = None
    line: tuple[int, ...] = ()
    cut: bool = False
    node: int = 0
    said: ev.Parked | None = None
    gone: bool = False


@dataclass
class World:
    """`line`: of every step that a whole group has applied, in which generation it was computed. `gone`: who was given
    up. `doomed`: whose machine goes away, and when. `finished`: the newest generation in which all met at the last
    barrier, 0 before."""

    state: Membership
    now: float = 0.0
    processes: dict[str, Process] = field(default_factory=dict)
    notices: list[str] = field(default_factory=list)
    plans: list[Plan] = field(default_factory=list)
    reports: list[do.Report] = field(default_factory=list)
    end: do.End | None = None
    raised: int = 0
    commits: int = 0
    line: tuple[int, ...] = ()
    gone: set[str] = field(default_factory=set)
    nodes: int = 2
    doomed: dict[str, float] = field(default_factory=dict)
    finished: int = 0

    @classmethod
    def of(
        cls,
        *,
        workers_min: int,
        workers_max: int,
        shards: int,
        servers: int = 0,
        copies: bool = False,
        backups: int = 0,
        joiners_follow: bool = False,
        max_failures: int = 3,
        secures: bool = False,
    ) -> "World":
        rules = AttemptRules(
            1,
            shards,
            servers=servers,
            copies=copies,
            backups=backups,
            joiners_follow=joiners_follow,
            max_failures=max_failures,
            setback_most_s=4.0,
            secures=secures,
        )
        state, out = begin(rules, workers_min=workers_min, workers_max=workers_max, now=0.0)
        world = cls(state)
        world.obey(out)
        return world

    # --- the machine's side ---------------------------------------------------------------------------------------

    def tell(self, event: ev.Event) -> None:
        before = self.state
        self.state, out = handle(before, event)
        assert not (before.ended and out), "instructions after the end"
        if not before.ended and self.state.ended and self.state.ended.outcome == "failed":
            self.check_failure(before, event, self.state.ended)
        self.obey(out)
        self.check()

    def obey(self, out: tuple[do.Instruction, ...]) -> None:
        for instruction in out:
            match instruction:
                case do.Start(worker=worker, role=role):
                    assert worker not in self.processes, "a worker's name was used twice"
                    self.processes[worker] = Process(role, node=len(self.processes) % self.nodes)
                case do.Form(plan=plan):
                    self.form(plan)
                case do.Interrupt(worker=worker, generation=generation):
                    process = self.processes[worker]
                    assert process.donor or not self.whole(), "a planned change broke an exchange"
                    if process.generation == generation or process.donor:
                        process.interrupted = True
                case do.Follow(worker=worker, donor=donor, number=number):
                    self.follow(worker, donor, number)
                case do.Announce(worker=worker):
                    self.processes[worker].announced = True
                case do.Kill(worker=worker, cause=cause):
                    assert cause != "resize" or self.processes[worker].generation == 0, (
                        "planned is not failed"
                    )
                    if not self.processes[worker].cut:  # a signal does not reach it
                        self.die(worker)
                case do.Dismiss(worker=worker):
                    process = self.processes[worker]
                    assert process.parked, "somebody was dismissed in the middle of its work"
                    process.alive = False
                case do.Report():
                    self.reports.append(instruction)
                case do.End(outcome=outcome):
                    assert self.state.cancel_by is None or outcome in ("cancelled", "failed"), (
                        f"{outcome} behind a cancel"
                    )
                    self.end = instruction

    def form(self, plan: Plan) -> None:
        assert not self.gone.intersection(plan.members), "back from the dead"
        assert self.state.cancel_by is None, "a plan behind a cancel"
        workers = plan.members[: plan.world]
        before = self.plans[-1] if self.plans else None
        assert plan.generation == (before.generation if before else 0) + 1, (
            "a generation was skipped or used twice"
        )
        assert len(set(plan.members)) == len(plan.members)
        assert plan.world <= plan.shards
        pausing = plan.cause == "pause"
        assert not (pausing and self.state.broken), "a pause that is no boundary"
        saves = plan.cause == "short"
        ends = self.state.closing or self.state.pausing
        assert ends or saves or plan.world >= self.state.workers_min, "a plan below min"
        if saves:
            self.check_saving(plan)
        owners = [shard for rank in range(plan.world) for shard in plan.shards_of(rank)]
        assert owners == list(range(plan.shards)) or not workers, "every shard needs exactly one owner"
        assert before is None or plan.start_transaction >= before.start_transaction, (
            "committed work was taken back"
        )
        members = [self.processes[m] for m in plan.members]
        for process in members:
            assert process.parked, "a plan with somebody who still computes"
        servers = [p for p in members if p.role == "server" and (not p.new or not plan.start_transaction)]
        copies = self.state.rules.copies
        level = (max if copies else min)((p.updated for p in servers), default=self.commits)
        self.check_parts(plan)
        complete = [p for p in members if p.generation > 0 and p.updated <= level]
        if any(p.generation > 0 for p in members):
            assert plan.start_transaction == max(p.applied for p in complete)
        if copies:
            assert level == max(p.updated for p in complete or members), "nobody has the optimizer's state"
        else:
            assert all(p.updated - level in (0, 1) for p in servers), "a server that nobody can catch up with"
        heals = dict(plan.heals)
        for name, process in zip(plan.members, members, strict=True):
            if name in heals:
                donor = self.processes[heals[name]]
                assert heals[name] in plan.members
                assert heals[name] not in heals, "a donor that has to heal itself"
                assert donor.applied == plan.start_transaction
                assert donor.updated <= level, "the weights of a server that is ahead"
                assert plan.start_transaction == 0 or donor.healed
                assert process.updated or process.role == "worker" or donor.role == "server" or not level
            else:
                assert process.applied == plan.start_transaction, "somebody behind does not heal"
                assert process.generation > 0 or process.in_sync or plan.start_transaction == 0
        assert workers or saves
        self.plans.append(plan)
        self.deliver(plan, members)

    def deliver(self, plan: Plan, members: list[Process]) -> None:
        for process in members:
            process.said = None
            process.new = process.new and plan.start_transaction > 0
            process.parked, process.interrupted, process.announced, process.in_sync = (
                False,
                False,
                False,
                False,
            )
            process.computing, process.generation, process.plan = process.alive, plan.generation, plan
            process.healed = process.healed and process.applied == plan.start_transaction

    def check_saving(self, plan: Plan) -> None:
        """Too few are left, who stand at a state that one of them alone may hold; it is saved once."""
        before, rules = self.plans[-1], self.state.rules
        assert rules.secures
        assert plan.world < self.state.workers_min
        assert before.cause != "short" or {*plan.members} < {*before.members}, "the same is saved twice"
        assert all(self.processes[m].generation > 0 for m in plan.members), "a newcomer has nothing to save"
        assert rules.servers or plan.world == 1

    def check_parts(self, plan: Plan) -> None:
        """Every part is held by somebody who has it, and who is new takes it from servers that are level. Not behind
        the last barrier, where nobody computes."""
        servers = [self.processes[m] for m in plan.members[plan.world :]]
        if not self.state.rules.backups or not plan.start_transaction or self.state.closing:
            return
        assert len(set(plan.slots)) == len(plan.slots) == plan.servers
        for part in plan.held_by:
            assert any(not servers[number].new for number in part), "a part that nobody holds"
        old = {p.updated for p in servers if not p.new}
        assert len(old) == 1 or not any(p.new for p in servers), "a new server beside one that is ahead"

    def check_failure(self, before: Membership, event: ev.Event, end: do.End) -> None:
        """What `workers_min` proven members do ends when they say so, or when a part of the state is nowhere any
        more."""
        speaker = before.find(getattr(event, "worker", ""))
        at_work = [
            m
            for m in before.members
            if m.role == "worker" and m.proven and m != speaker and m.phase != "condemned"
        ]
        said = isinstance(event, ev.Raised | ev.Failed | ev.Finished) and speaker and speaker.proven
        gone = "held the state" in end.message or "parameter server" in end.message
        gone = gone or (all(m.proven for m in before.members) and "the exchange failed" in end.message)
        assert said or gone or len(at_work) < before.workers_min, f"{event} ended what others did: {end}"

    def check(self) -> None:
        active = [w for w in self.state.workers if w.phase == "active"]
        assert all(w.generation == self.state.generation for w in active), "two generations at once"
        assert self.state.generation == len(self.plans)
        assert self.state.committed <= self.commits, "a step that nobody has applied"
        if self.end is None:
            self.gone |= self.processes.keys() - {w.id for w in self.state.workers}

    # --- what happens in the world --------------------------------------------------------------------------------

    @property
    def plan(self) -> Plan | None:
        return self.plans[-1] if self.plans else None

    def alive(self) -> list[str]:
        return [n for n, p in self.processes.items() if p.alive]

    def current(self) -> list[str]:
        return [m for m in self.plan.members if self.processes[m].alive] if self.plan else []

    def whole(self) -> bool:
        """All members of the plan compute."""
        return self.plan is not None and all(
            p.alive and not p.cut and p.computing and p.generation == self.plan.generation
            for p in (self.processes[m] for m in self.plan.members)
        )

    def boot(self, worker: str) -> None:
        process = self.processes[worker]
        waits = process.generation == 0 and not process.parked and not process.donor
        if process.alive and not process.cut and waits:
            process.parked = True
            self.say(ev.Parked(worker, self.now, ev.ParkReport(0, 0, 0, "")))

    def commit(self, only: int | None = None) -> None:
        """All apply the next step; with `only` the first so many do before something happens."""
        if not self.whole() or self.plan is None or (self.finished and self.plan.cause != "short"):
            return
        members = list(self.plan.members)
        newest = self.heal(self.plan)
        if self.plan.cause in ("pause", "short"):
            self.park(members)
            return
        planned = any(self.processes[m].announced for m in members)
        in_order = sorted(
            members, key=lambda m: self.processes[m].role
        )  # a server applies, then it publishes
        applying = members if only is None else in_order[:only]
        for member in applying:
            process = self.processes[member]
            process.applied += 1
            process.updated = process.applied
            process.line = (*process.line, self.plan.generation)
            assert process.line[: len(self.line)] == self.line, (
                "a committed step was taken back or done twice"
            )
            assert len(process.line) == process.applied, "a step was skipped"
            self.commits = max(self.commits, process.applied)
            self.tell(ev.Committed(member, self.plan.generation, newest + 1, self.now))
        if applying == members:
            self.line = self.processes[members[0]].line
        if planned and only is None:
            self.park(members)

    def heal(self, plan: Plan) -> int:
        """A joiner is level before the group's first commit. Returns the step of all."""
        members = [self.processes[m] for m in plan.members]
        newest = max([plan.start_transaction, *(p.applied for p in members if p.healed)])
        donors = [p for p in members if p.healed and p.applied == newest]
        for process in members:
            if process not in donors:
                process.line = donors[0].line if donors else ()
            process.applied, process.healed, process.new = newest, True, False
            process.updated = max(process.updated, newest)
        return newest

    def park(self, members: list[str]) -> None:
        """At a boundary, or when all have saved what they hold."""
        for member in members:
            process = self.processes[member]
            process.computing, process.parked = False, True
        for member in members:
            p = self.processes[member]
            self.say(ev.Parked(member, self.now, ev.ParkReport(p.generation, p.applied, p.updated, "")))
        for name, p in list(self.processes.items()):
            if p.alive and not p.cut and p.in_sync and p.donor in members and not self.end:
                self.stand(name, p)

    def stand(self, name: str, process: Process) -> None:
        """A shadow reaches the boundary of its donor, with the same state or another one."""
        donor = self.processes[process.donor]
        process.donor, process.parked = "", True
        if process.astray:
            process.in_sync = process.astray = False
            self.say(ev.Parked(name, self.now, ev.ParkReport(0, 0, 0, "", astray="1.weight")))
            return
        process.applied, process.updated, process.line = donor.applied, donor.applied, donor.line
        process.healed = True
        self.say(ev.Parked(name, self.now, ev.ParkReport(0, process.applied, process.updated, "")))

    def say(self, parked: ev.Parked) -> None:
        process = self.processes[parked.worker]
        process.said = replace(parked, report=replace(parked.report, followed=process.pair))
        self.tell(process.said)

    def follow(self, worker: str, donor: str, number: int) -> None:
        process = self.processes[worker]
        assert process.parked or not process.alive, "somebody shadows who does not wait to join"
        assert process.generation == 0
        assert self.processes[donor].generation == self.state.generation, "a donor that is no member"
        process.parked, process.in_sync, process.interrupted, process.donor = False, False, False, donor
        process.pair = number

    def begin_lines(self, worker: str) -> None:
        """Whom a shadow asks tells it of calls that are over."""
        process = self.processes[worker]
        if process.alive and not process.cut and process.donor and self.whole() and not process.in_sync:
            process.lines = True

    def draw_level(self, worker: str) -> None:
        """A shadow has run its lines; or it has applied all that its donor has; or where servers make the updates it
        stands at its call."""
        process = self.processes[worker]
        if process.lines:
            self.stand_behind(worker, process)
            return
        if process.donor and self.state.rules.servers:
            if process.alive and not process.cut and self.whole():
                process.donor, process.parked = "", True
                self.say(
                    ev.Parked(worker, self.now, ev.ParkReport(0, 0, 0, "", call=process.call, caught_up=True))
                )
            return
        if process.alive and not process.cut and process.donor and self.whole() and not process.in_sync:
            process.in_sync = True
            self.tell(ev.InSync(worker, self.now, process.pair))

    def stand_behind(self, worker: str, process: Process) -> None:
        """It comes to a call of which it knows nothing, or is called off before."""
        if process.alive and not process.cut:
            process.lines, process.donor, process.parked = False, "", True
            process.call += 1
            self.say(ev.Parked(worker, self.now, ev.ParkReport(0, 0, 0, "", call=process.call)))

    def stray(self, worker: str) -> None:
        """The program changes what a shadow does not hear of."""
        process = self.processes[worker]
        process.astray = bool(process.donor) and not process.lines

    def die(self, worker: str) -> None:
        process = self.processes[worker]
        if process.alive:
            process.alive = process.computing = False  # the machine may still believe it parked
            if not process.cut:
                self.notices.append(worker)

    def lose_node(self, node: int) -> None:
        """All its processes at once."""
        for name, process in self.processes.items():
            if process.node == node:
                self.die(name)

    def cut_off(self, node: int) -> None:
        """The link of a node goes down: its processes live, and neither they nor their deaths are heard of."""
        for process in self.processes.values():
            if process.alive and process.node == node:
                process.cut = True

    def echo(self, worker: str) -> None:
        """What it said last is told again; what it said in an earlier generation comes late, and claims more than
        there is."""
        said = self.processes[worker].said
        if said is not None and self.processes[worker].alive and not self.processes[worker].cut:
            self.tell(replace(said, now=self.now))
        before, step = self.processes[worker].generation - 1, self.commits + 5
        if before > 0:
            self.tell(ev.Parked(worker, self.now, ev.ParkReport(before, step, step, "broken pipe")))
            self.tell(ev.Committed(worker, before, step, self.now))

    def come_back(self) -> None:
        """The link is up again: ghosts say what they had to say in generations of theirs, and end."""
        for name, process in list(self.processes.items()):
            if not process.cut:
                continue
            process.cut = False
            if not process.alive:
                self.notices.append(name)
            elif name in self.gone:
                step = process.applied + 1
                self.tell(
                    ev.Parked(name, self.now, ev.ParkReport(process.generation, step, step, "broken pipe"))
                )
                self.tell(ev.Committed(name, process.generation, step, self.now))
                self.tell(ev.Finished(name, "other", self.now))
                process.alive = process.computing = False
            elif process.said is not None:  # that it waits comes with each heartbeat
                self.tell(replace(process.said, now=self.now))

    def hear(self) -> None:
        """The oldest death notice arrives."""
        if self.notices:
            self.tell(ev.Lost(self.notices.pop(0), "died", self.now))

    def sense(self, worker: str) -> None:
        """A member whose exchange cannot go on, or that was interrupted, parks."""
        process = self.processes[worker]
        if process.alive and not process.cut and process.donor:
            self.lose_donor(worker, process)
            return
        if not (
            process.alive
            and not process.cut
            and process.computing
            and (process.interrupted or not self.whole())
        ):
            return
        process.computing, process.parked = False, True
        generation, step = process.generation, process.updated
        if self.state.rules.backups and process.role == "server" and process.new:
            process.generation, step = 0, -1
        self.say(ev.Parked(worker, self.now, ev.ParkReport(generation, process.applied, step, "broken pipe")))

    def lose_donor(self, worker: str, process: Process) -> None:
        """A shadow whose donor is gone or gave up, or that was interrupted, waits to join again."""
        if process.lines:
            if process.interrupted:
                self.stand_behind(worker, process)
            return
        donor = self.processes[process.donor]
        if process.interrupted or not donor.alive or donor.cut or (not donor.computing and self.state.broken):
            process.donor, process.in_sync, process.astray, process.parked = "", False, False, True
            process.applied = process.updated = 0
            self.say(ev.Parked(worker, self.now, ev.ParkReport(0, 0, 0, "its donor is gone")))

    def raise_in(self, worker: str, where: tuple[int, int]) -> None:
        process = self.processes[worker]
        if process.alive and not process.cut and process.computing and not self.finished:
            process.alive = process.computing = False
            self.tell(ev.Raised(worker, *where, "Traceback: boom", self.now))

    def give_up_new(self, worker: str, how: int) -> None:
        """Who never committed ends by itself, while others have: it raises before its first session call, misses
        something, or dies."""
        process = self.processes.get(worker)
        if (
            process is None
            or not process.alive
            or process.cut
            or not any(w.proven for w in self.state.workers)
        ):
            return
        match how % 3:
            case 0:
                self.die(worker)
                return
            case 1:
                said: ev.Event = ev.Raised(worker, 0, -1, "Traceback: no such file", self.now)
            case _:
                said = ev.Failed(worker, "platform_error", "no space left on device", self.now)
        process.alive = process.computing = False
        self.tell(said)

    def drain(self, worker: str, for_s: float, why: str = "") -> None:
        """Its machine goes away after that."""
        self.doomed[worker] = min(self.now + for_s, self.doomed.get(worker, self.now + for_s))
        self.tell(ev.Drain(worker, self.now + for_s, self.now, why))

    def tick(self, seconds: float) -> None:
        self.now += seconds
        for worker in [w for w, deadline in self.doomed.items() if deadline <= self.now]:
            del self.doomed[worker]
            self.die(worker)
        self.tell(ev.Tick(self.now, patience_s=1.0))

    def miss(self) -> None:
        """Who is cut off does not beat."""
        for worker in [n for n, p in self.processes.items() if p.cut and n not in self.gone]:
            self.tell(ev.Evict(worker, "frozen", self.now))

    def calm(self) -> None:
        """Everybody cooperates until nothing is left to do."""
        for _ in range(60):
            if self.end:
                return
            self.hustle()
            if not self.notices and self.settled():
                return
        raise AssertionError(f"not quiet after 60 rounds: {self.state}")

    def hustle(self) -> None:
        """Everybody does what there is to do."""
        self.miss()
        for _ in range(len(self.notices)):
            self.hear()
        for worker in self.alive():
            self.boot(worker)
            self.sense(worker)
            self.draw_level(worker)
        self.commit()
        if self.finished:
            self.finish()
        self.tick(0.5 if not any(p.cut for p in self.processes.values()) else 11.0)

    def settled(self) -> bool:
        return self.end is not None or (
            self.whole()
            and not self.state.broken
            and not self.state.announced
            and len(self.plan.members) - self.plan.servers == self.state.workers_max
            and self.plan.servers == self.state.rules.servers
            and not any(w.leaving for w in self.state.workers)
        )

    def finish(self) -> None:
        for worker in self.current():
            self.leave(worker)

    def leave(self, worker: str) -> None:
        """All members have met at the last barrier, in this generation; this one hears of it, and is gone."""
        process, plan = self.processes[worker], self.plan
        if plan is None or not process.computing or process.cut or process.generation != plan.generation:
            return
        if self.whole() and plan.cause not in ("pause", "short"):
            self.finished = plan.generation
            self.heal(plan)
        if self.finished == plan.generation:
            process.computing, process.gone = False, True
            self.pass_barrier(worker)

    def pass_barrier(self, worker: str) -> None:
        self.tell(ev.Finished(worker, "same", self.now))
