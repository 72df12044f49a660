"""The check that all members are at the same place in the program, by their control words."""

from torch import Tensor

from ringleader.elastic import Plan
from ringleader.errors import CallMismatch
from ringleader.train.generation.control_word import LoopStance, ProgramPosition, WordLayout

BRANCH_ON = (
    "Branch only on values that are equal on all workers: evaluate(), session.loss, global_step, epoch."
)


def agreed(layout: WordLayout, reduced: Tensor, plan: Plan, rank: int, step: int) -> bool:
    """Check that all members are at the same session call and step, and leave a loop together.

    Args:
        reduced: the sum of the members' words.
        rank, step: this member's; it has committed so many steps.

    Returns:
        whether the step happens: False if the loop was left before it, or if no member could have left it.

    Raises:
        CallMismatch: naming two ranks that differ.
    """
    world = len(plan.members)
    positions = layout.positions(reduced, world=world, near=step)
    mine = positions[rank]
    for other, theirs in enumerate(positions):
        if theirs != mine:
            raise CallMismatch(f"{_at(rank, mine)}; {_at(other, theirs)}.", hint=BRANCH_ON)
    stances = layout.stances(reduced, world=world)
    if LoopStance.LEAVES in stances and LoopStance.STAYS in stances:
        left, stays = stances.index(LoopStance.LEAVES), stances.index(LoopStance.STAYS)
        raise CallMismatch(
            f"rank {left} ({plan.members[left]}) left the loop of session call {mine.call} ({mine.kind}) by break "
            f"after step {mine.step}; rank {stays} ({plan.members[stays]}) continues with step {mine.step + 1}.",
            hint=BRANCH_ON,
        )
    # Where all only follow, no body whose slices these are has seen the step before: it may yet leave, so the
    # step is made again after this turn.
    return LoopStance.STAYS in stances


def _at(rank: int, position: ProgramPosition) -> str:
    return f"rank {rank} is at session call {position.call} ({position.kind}), step {position.step}"
