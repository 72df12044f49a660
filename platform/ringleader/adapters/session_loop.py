"""A loop over a session's batches on behalf of a library: its place in the program, and its steps."""

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from inspect import CO_GENERATOR
from types import FrameType
from typing import Any, NoReturn

import torch
from torch.utils.data import DataLoader, RandomSampler, SequentialSampler

from ringleader.errors import StepMisuse
from ringleader.program_text.current_line import CodeLine, running_frames
from ringleader.train import Session
from ringleader.train.best_weights import best_of
from ringleader.train.body.call_checks import CLIP_NORM
from ringleader.train.dataset_loops import LoopRequest
from ringleader.train.rows.dataset_copies import bring
from ringleader.train.rows.order.batch_sizes import steps_in_epoch
from ringleader.train.rows.slices import Collate, DatasetPass, check_dataset, to_device

NOTHING = object()


@dataclass(frozen=True, slots=True)
class PassRows:
    """What one pass reads, as `session.batches` takes it.

    Attributes:
        batch_size: rows of a batch as the library counts them; None where the program does not say.
        clips: what the program writes to have its gradients clipped.
    """

    dataset: Any
    shuffle: bool = True
    collate: Collate | None = None
    loader_workers: int = 0
    drop_last: bool = False
    batch_size: int | None = None
    clips: str = CLIP_NORM

    @classmethod
    def of_loader(cls, loader: DataLoader[Any], clips: str) -> "PassRows":
        """What a torch loader reads. Raises StepMisuse: in an order, or by a function, that a session does not keep."""
        check_dataset(loader.dataset)
        if loader.batch_size is None or loader.worker_init_fn is not None:
            what = "a batch_sampler" if loader.batch_size is None else "a worker_init_fn"
            raise StepMisuse(
                f"the DataLoader has {what} of its own, which a session does not use.",
                hint="Give it batch_size, shuffle, collate_fn, num_workers and drop_last only.",
            )
        return cls(
            loader.dataset,
            shuffles(loader.sampler, len(loader.dataset)),  # type: ignore[arg-type]
            loader.collate_fn,
            loader.num_workers,
            loader.drop_last,
            loader.batch_size,
            clips,
        )

    def steps(self, session: Session) -> int:
        """The steps of one pass."""
        return self.batches(session._spec.batch.global_size)

    def batches(self, size: int) -> int:
        """The batches of one pass that have `size` rows each; the last one may have fewer."""
        return steps_in_epoch(len(self.dataset), size, drop_last=self.drop_last)

    def whole(self, session: Session, batch_size: int) -> Iterator[Any]:
        """All rows in their order, on every worker: for an evaluation."""
        batches: DataLoader[Any] = DataLoader(
            self.dataset,
            batch_size,
            collate_fn=self.collate,
            num_workers=self.loader_workers,
            drop_last=self.drop_last,
        )
        return (to_device(batch, session.device) for batch in batches)

    def turns(self, session: Session) -> Iterator[Any]:
        """One pass: the batches of this worker's slices, each to be ended by `session.step`."""
        return self._passed(session)

    def by_steps(self, session: Session) -> Iterator[Iterator[Any]]:
        """One pass step by step, as `session.steps` gives them: each has this worker's slices."""
        session._loops.by_steps.check_possible()
        best_of(session._held.kept, session.keep)
        return self._passed(session, by_steps=True)

    def _passed(self, session: Session, *, by_steps: bool = False) -> DatasetPass:
        check_dataset(self.dataset)
        bring(self.dataset, session._near)
        request = LoopRequest(
            self.dataset,
            program_place(),
            self.shuffle,
            self.collate,
            self.loader_workers,
            self.drop_last,
            by_steps,
            clips=self.clips,
        )
        return DatasetPass(partial(session._run_batches, request))


class SessionSteps:
    """One pass by steps: an item for each step in which this worker has slices, itself an iterator over these. A step
    that breaks begins again within its item, so whoever takes all of each item sees each step once. The pass is over
    with its last step: lines behind that run between session calls."""

    def __init__(self, session: Session, rows: PassRows) -> None:
        self._session = session
        self._last = session.global_step + rows.steps(session)
        self._turns = iter(rows.turns(session))
        self._ahead: Any = NOTHING

    def __iter__(self) -> Iterator[Iterator[Any]]:
        while True:
            if self._ahead is NOTHING:
                self._ahead = next(self._turns, NOTHING)
            if self._ahead is NOTHING:
                return
            yield self._slices()

    def close(self) -> None:
        """End the pass where it is, as a `break` does; nothing where it is over."""
        self._turns.close()  # type: ignore[attr-defined]

    def _slices(self) -> Iterator[Any]:
        before = self._session.global_step
        while True:
            batch, self._ahead = self._ahead, NOTHING
            yield batch
            if before != self._session.global_step < self._last:
                return  # the next slice is taken later: the library has its own lines behind a step
            self._ahead = next(self._turns, NOTHING)
            # Committed while waiting: others have taken over this worker's slices, and this one is of a later step.
            if self._ahead is NOTHING or self._session.global_step != before:
                return


def program_frame() -> FrameType:
    """The program's frame with the loop that runs now: behind all libraries that call each other for it, and behind
    generators of the program through which it goes over the batches."""
    frames = list(running_frames()) or [sys._getframe(1)]
    return next((frame for frame in frames if not frame.f_code.co_flags & CO_GENERATOR), frames[0])


def program_place() -> CodeLine:
    """The program's line that runs now."""
    frame = program_frame()
    return frame.f_code, frame.f_lineno


def check_batch_size(session: Session, batch_size: int, accumulation: int, *, whole: bool = False) -> None:
    """Check that a program's batches and the job's are the same size: each logical shard counts as a process.

    Args:
        batch_size: rows of one process's batch; `whole`: of all processes' together.
        accumulation: batches that make a step.

    Raises:
        StepMisuse: naming both sizes, or the key of the job file by which they would change.
    """
    spec = session._spec
    key = "batch.schedule" if spec.batch.schedule else "data.skip" if spec.data.skip else ""
    if key:
        refuse(
            f"{key} in the job file",
            "The library counts its steps by batches of one size: leave the key out.",
        )
    size, shards = spec.batch.global_size, 1 if whole else spec.shards
    rows = batch_size * accumulation * shards
    if rows == size:
        return
    parts = f"batch size {batch_size} × accumulation {accumulation}"
    parts += "" if whole else f" × {shards} logical shards"
    counted = "" if whole else ", and each logical shard counts as a process"
    raise StepMisuse(
        f"a step of the program has {rows} rows ({parts}), and batch.global_size is {size}.",
        hint=f"Set batch.global_size to {rows} in the job file, or change the batch size: a step has the same rows "
        f"for any number of workers{counted}.",
    )


def record(session: Session, values: dict[str, float]) -> None:
    """Record numbers at the newest committed step, once: lines that run again on this worker record nothing."""
    member = session._member
    if values and member.current is not None and not member.sections.catches_up:
        member.reporter.add_scores(member.progress.step, member.current.number, values)


def in_dry_turn(session: Session) -> bool:
    """Whether the loop's body runs for its names only, and nothing of it counts."""
    return session._loops.dry_turn.runs


def refuse(what: str, hint: str) -> NoReturn:
    """Refuse a call of a library that a session cannot do. Raises StepMisuse."""
    raise StepMisuse(f"{what} cannot be kept on a session.", hint=hint)


def check_no_process_group(hint: str) -> None:
    """Check that the program is in no group of torch's own. Raises StepMisuse."""
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        refuse("a process group of torch.distributed", hint)


def shuffles(sampler: Any, rows: int) -> bool:
    """Whether a sampler gives all rows in a random order. Raises StepMisuse: it gives others, or in another order."""
    if isinstance(sampler, SequentialSampler):
        return False
    if isinstance(sampler, RandomSampler) and not sampler.replacement and sampler.num_samples == rows:
        return True
    raise StepMisuse(
        f"the DataLoader's sampler is a {type(sampler).__name__}, whose order a session does not keep.",
        hint="Use shuffle=True or False; for chosen rows give each loop another data set: Subset(dataset, rows).",
    )
