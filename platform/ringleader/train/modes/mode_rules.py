"""The rules of a mode outside of its loops: by them the parts of a member open generations, heal, save and compare."""

from ringleader.checkpoint.parts import CheckpointPart
from ringleader.elastic.plan import Plan
from ringleader.spec.sync import Sync
from ringleader.train.generation.generation import Generation
from ringleader.train.state.progress import Progress


class ModeRules:
    """The rules of modes whose members commit a batch, or a round, together; other modes have a subclass.

    Attributes:
        commits_together: no item and no token is on its way while the program's lines run.
        sums_gradients: gradients are summed among the members; else weights travel.
        leased: workers lease items, so that a server may have applied more of a loop than the others.
        averages: weights and optimizers' states of replicas that stepped by themselves are averaged.
        no_phases: the reason why a step cannot have several phases; empty where it can.
    """

    commits_together = True
    sums_gradients = True
    leased = False
    averages = False
    no_phases = ""

    def __init__(self, sync: Sync) -> None:
        self._sync = sync

    @property
    def spoken(self) -> str:
        """The mode in the words of the job file."""
        return f"sync: {self._sync.architecture}"

    @property
    def steps_alone(self) -> bool:
        """Whether each worker steps optimizers of its own."""
        return False

    @property
    def server_count(self) -> int:
        """The number of parameter servers beside the workers."""
        return self._sync.server_count

    @property
    def has_servers(self) -> bool:
        """Whether parameter servers keep the optimizers, or copies of the whole state."""
        return self.server_count > 0

    @property
    def servers_are_copies(self) -> bool:
        """Whether each server holds all parameters and optimizers' states."""
        return self._sync.servers_are_copies

    @property
    def in_parts(self) -> bool:
        """Whether none of the servers holds everything; backups do not count."""
        return self._sync.in_parts

    @property
    def has_whole_gradient(self) -> bool:
        """Whether one member has all gradients of an update, whose norm can be bounded."""
        return True

    @property
    def rows_travel(self) -> bool:
        """Whether sparse gradients are exchanged as rows; where weights travel, they are whole."""
        return self.sums_gradients and not (self.averages or self.servers_are_copies)

    @property
    def sums_on_devices(self) -> bool:
        """Whether what is exchanged stays on the devices, where each member has one."""
        return self.sums_gradients and not self.has_servers

    def speaker(self, plan: Plan) -> int:
        """The rank of the member that records the steps."""
        return 0

    def has_updates(self, plan: Plan) -> bool:
        """Whether servers may have made updates before this plan."""
        return plan.start_transaction > 0

    def is_ahead(self, progress: Progress) -> bool:
        """Whether this server has already applied the running step or phase, and updates no second time."""
        return progress.is_ahead

    def is_apart(self, progress: Progress) -> bool:
        """Whether the servers may stand at updates of their own, which are not to be published now."""
        return False

    def stay(self, progress: Progress) -> None:
        """Go into a generation in which this member receives no state."""

    def has_parts(self, plan: Plan) -> bool:
        """Whether none of the servers holds everything, so that they hand over and publish what they hold."""
        return plan.servers > 1 and not self._sync.servers_are_copies

    def holds_alone(self, plan: Plan) -> bool:
        """Whether servers are lost, and one of those left is the only one that holds what it does."""
        if plan.servers >= self._sync.server_count:
            return False
        return plan.servers == 1 if self._sync.servers_are_copies else any(len(s) == 1 for s in plan.held_by)

    def holds_all(self, plan: Plan) -> bool:
        """Whether the members hold the whole state: who is lost behind the last step is not replaced."""
        if not self._sync.server_count:
            return True
        return plan.servers > 0 and (self._sync.servers_are_copies or all(plan.held_by))

    def saved_part(self, generation: Generation) -> CheckpointPart | None:
        """The part of a checkpoint that this member writes: equals share out one state, servers write their own. None:
        it writes none."""
        plan, server = generation.plan, generation.server
        if not plan.servers:
            return CheckpointPart(writer=generation.rank, writers=plan.world)
        if server < 0:
            return None
        if generation.exchange.part is None:
            return CheckpointPart(writer=server, writers=plan.servers)
        return CheckpointPart(state=server, states=plan.servers)  # what two servers hold is written by both
