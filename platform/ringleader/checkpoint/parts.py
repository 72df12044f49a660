"""The parts of a checkpoint, their writers and the names of their files."""

from dataclasses import dataclass

ALIGNED = 8
"""The tensors of a file begin at a multiple of so many bytes."""


@dataclass(frozen=True, slots=True)
class CheckpointPart:
    """The part of a checkpoint that a member writes.

    A checkpoint holds one state, or one of each parameter server; a state's tensors are shared out to its writers.

    Attributes:
        state, states: which of how many states.
        writer, writers: which of how many members write it.
    """

    state: int = 0
    states: int = 1
    writer: int = 0
    writers: int = 1

    @property
    def number(self) -> int:
        """The writer's number, counted over all states."""
        return self.state * self.writers + self.writer

    @property
    def count(self) -> int:
        """The number of writers that the checkpoint has."""
        return self.states * self.writers

    @property
    def skeleton(self) -> str:
        return f"state-{self.state}.pkl"

    @property
    def names(self) -> str:
        """The name of the file that says which tensors are weights."""
        return f"names-{self.state}.json"

    @property
    def tensors(self) -> str:
        return f"state-{self.state}-{self.writer + 1}-of-{self.writers}.safetensors"
