"""The context of a member's parts: its job, its committed position, and the generation that it takes part in."""

from functools import cached_property

import torch
from torch.nn import Parameter

from ringleader.comm.timeline import NO_TIMELINE, Timeline
from ringleader.spec import JobSpec
from ringleader.train.generation.control_word import WordLayout
from ringleader.train.generation.generation import Generation
from ringleader.train.generation.settled_records import SettledRecords
from ringleader.train.modes.loop_position import LoopPosition
from ringleader.train.modes.mode_rules import ModeRules
from ringleader.train.ports import Coordinator, RecordSink
from ringleader.train.state.buffers import CommittedBuffers
from ringleader.train.state.loss_scale import LossScale
from ringleader.train.state.progress import Progress
from ringleader.train.state.state_transfer import StateTransfer
from ringleader.train.state.training_state import TrainingState
from ringleader.train.time_split import TimeSplit


class MemberContext:
    """What all parts of one member share; it knows none of them.

    Attributes:
        rules: those of the job's mode.
        held: the objects that the program has registered.
        transfer: the giving and taking of their state.
        progress: the committed position.
        inside: the position inside the running loop.
        sink: where prints and progress go.
        reporter: where records and events go.
        scaling: the loss scale of fp16; None in other precisions.
        current: the generation that this member takes part in; None before its first, between two, and at the end.
        came_first: this member was there before the attempt's first transaction.
    """

    def __init__(
        self,
        spec: JobSpec,
        device: torch.device,
        coordinator: Coordinator,
        sink: RecordSink,
        rules: ModeRules,
    ) -> None:
        self.spec = spec
        self.rules = rules
        self.same_bits = spec.sync.same_bits
        self.device = device
        self.held = TrainingState()
        self.transfer = StateTransfer(self.held)
        self.progress = Progress()
        self.inside = LoopPosition()
        self.sink = sink
        self.reporter = SettledRecords(sink)
        self.coordinator = coordinator
        self.timeline = Timeline() if spec.debug.trace else NO_TIMELINE
        self.split = TimeSplit(self.timeline)
        self.scaling = LossScale() if spec.precision == "fp16" else None
        self.current: Generation | None = None
        self.came_first = False

    @property
    def generation(self) -> Generation:
        """The generation that this member takes part in. Raises LookupError where there is none."""
        if self.current is None:
            raise LookupError("this worker takes part in no generation")
        return self.current

    @property
    def serves(self) -> bool:
        """Whether this member is a server."""
        return self.current is not None and self.current.serves

    @property
    def ahead(self) -> bool:
        """Whether this server has already applied the running step or phase."""
        return self.rules.is_ahead(self.progress)

    # Cached at first use: the program registers its models after the member is made.

    @cached_property
    def parameters(self) -> list[Parameter]:
        """Every parameter, frozen ones too; `TrainedParameters` knows which of them are trained."""
        return self.held.parameters

    @cached_property
    def buffers(self) -> CommittedBuffers:
        """The buffers of all models."""
        return CommittedBuffers(self.held.models)

    @cached_property
    def layout(self) -> WordLayout:
        """The entries of the control word."""
        # There are never more workers than logical shards: the job file is refused otherwise.
        return WordLayout(
            members=self.spec.shards + self.rules.server_count,
            shards=self.spec.shards * self.spec.sync.round_steps,
            parameters=len(self.parameters),
            buffers=self.buffers.word_length,
        )

    @property
    def part(self) -> list[Parameter] | None:
        """The parameters that this server of several updates, or has updated; None: all that any member updates."""
        share = self.generation.exchange.part
        return None if share is None else self.held.ever_trained(share)

    def begin(self, generation: Generation) -> None:
        """Take part in a generation, whose exchange is open."""
        self.current = generation
        self.came_first |= generation.number == 1 or generation.plan.start_transaction == 0

    def leave(self) -> None:
        """Close the generation that this member takes part in, if there is one."""
        if self.current is not None:
            # The count of the exchange goes with it.
            self.split.add_exposed(self.current.exchange.exposed_s)
            self.current.exchange.close()
            self.current = None

    def publish(self) -> None:
        """Publish the weights that this member updates and take over those that others do. Raises ExchangeBroken."""
        self.progress.begin_publication()
        self.generation.exchange.publish()
        self.progress.end_publication()

    def call_back(self) -> None:
        """Run the callbacks that waited until all weights are here."""
        self.held.call_back()
        if self.held.callbacks:
            self.buffers.adopt()
