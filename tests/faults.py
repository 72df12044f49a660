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


@dataclass(frozen=True)
class FaultPlan:
    """Scripted faults, and resizes that the play asks for once `step` is committed."""

    cues: tuple[Cue, ...] = ()
    resizes: tuple[tuple[int, int, int], ...] = ()
    pauses: tuple[int, ...] = ()
    drains: tuple[tuple[int, str], ...] = ()
    evictions: tuple[tuple[int, str], ...] = ()

    def kill(
        self, worker: str, *, at_step: int, phase: str = "forward", past: int = 0, once: Path = Path()
    ) -> "FaultPlan":
        """`once`: not before this file or checkpoint is there, or any checkpoint in this folder."""
        return replace(self, cues=(*self.cues, Cue(worker, at_step, phase, "kill", past=past, sign=once)))

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

    def dawdle(self, worker: str, *, from_step: int, for_generation: int) -> "FaultPlan":
        """From that step on the worker waits a little at each `forward` until it has heard of that generation."""
        cue = Cue(worker, from_step, "forward", "dawdle", for_generation)
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

    def resize(self, *, at_step: int, minimum: int, maximum: int) -> "FaultPlan":
        return replace(self, resizes=(*self.resizes, (at_step, minimum, maximum)))
