"""What is to happen in a play: faults on cue, resizes, pauses."""

from dataclasses import dataclass, replace
from pathlib import Path

ANY = -1
"""At whatever step: who leases items does not pass through every one."""


@dataclass(frozen=True)
class Cue:
    """When a worker at `step` (committed steps, or ANY) reaches `phase` after `past` other times, `act` happens."""

    worker: str
    step: int
    phase: str
    act: str
    generation: int = 0
    sign: Path = Path()
    past: int = 0
    joined: str = ""
    since: int = 1
    asked: bool = False
    longer: float = 1.0
    later: bool = False


@dataclass(frozen=True)
class FaultPlan:
    """Scripted faults, and resizes that the play asks for once `step` is committed."""

    cues: tuple[Cue, ...] = ()
    resizes: tuple[tuple[int, int, int], ...] = ()
    pauses: tuple[int, ...] = ()
    drains: tuple[tuple[int, str], ...] = ()
    evictions: tuple[tuple[int, str], ...] = ()

    def kill(
        self,
        worker: str,
        *,
        at_step: int,
        phase: str = "forward",
        past: int = 0,
        once: Path = Path(),
        later: bool = False,
    ) -> "FaultPlan":
        """`once`: not before this file or checkpoint is there, or any checkpoint in this folder.

        `later`: where the worker does not pass through that step so, at the next one where it does."""
        cue = Cue(worker, at_step, phase, "kill", past=past, sign=once, later=later)
        return replace(self, cues=(*self.cues, cue))

    def hold(
        self,
        worker: str,
        *,
        at_step: int,
        for_generation: int,
        phase: str = "forward",
        past: int = 0,
        joined: str = "",
    ) -> "FaultPlan":
        """The worker goes on only when it has heard of this generation, or is in a plan with `joined`."""
        cue = Cue(worker, at_step, phase, "hold", for_generation, past=past, joined=joined)
        return replace(self, cues=(*self.cues, cue))

    def linger(
        self,
        worker: str,
        *,
        for_generation: int,
        since_generation: int = 1,
        since_step: int = 0,
        joined: str = "",
        asked: bool = False,
    ) -> "FaultPlan":
        """Once it is in that generation and has said that so many steps are committed, the worker stays where it is,
        whatever its program does there, until it has heard of `for_generation` or is in a plan with `joined`, or its
        own generation is given up.

        `asked`: or until a newcomer asks to follow a member, which has to go on for that."""
        cue = Cue(
            worker,
            since_step,
            "",
            "linger",
            for_generation,
            joined=joined,
            since=since_generation,
            asked=asked,
        )
        return replace(self, cues=(*self.cues, cue))

    def dawdle(
        self,
        worker: str,
        *,
        for_generation: int,
        from_step: int = 0,
        since_generation: int = 1,
        longer: float = 1.0,
    ) -> "FaultPlan":
        """From that step and generation on the worker waits a little at each `forward` until it has heard of
        `for_generation`.

        `longer`: each time so many times as long as the time before, so that few steps are enough."""
        cue = Cue(
            worker, from_step, "forward", "dawdle", for_generation, since=since_generation, longer=longer
        )
        return replace(self, cues=(*self.cues, cue))

    def stumble(self, worker: str, *, at_step: int, phase: str, once: Path) -> "FaultPlan":
        """The worker's exchange breaks, after somebody has made the file `once`."""
        return replace(self, cues=(*self.cues, Cue(worker, at_step, phase, "stumble", sign=once)))

    def pause(self, *, at_step: int) -> "FaultPlan":
        return replace(self, pauses=(*self.pauses, at_step))

    def drain(self, worker: str, *, at_step: int) -> "FaultPlan":
        """The worker's machine goes away at once; it stays until it is killed."""
        return replace(self, drains=(*self.drains, (at_step, worker)))

    def evict(self, worker: str, *, at_step: int) -> "FaultPlan":
        """The worker is taken for frozen: it is killed, wherever it is."""
        return replace(self, evictions=(*self.evictions, (at_step, worker)))

    def resize(self, *, at_step: int, workers_min: int, workers_max: int) -> "FaultPlan":
        return replace(self, resizes=(*self.resizes, (at_step, workers_min, workers_max)))
