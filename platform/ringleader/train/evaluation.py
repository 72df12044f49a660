"""Evaluation: rows spread over the logical shards, sums that do not depend on the world, redone only in part."""

import reprlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ringleader.errors import ExchangeBroken, StepMisuse
from ringleader.exchange import Exchange
from ringleader.train.body.autocast import Autocast
from ringleader.train.call_sequence import CallSequence
from ringleader.train.generation.control_word import BARRIER, EVALUATE
from ringleader.train.generation.member import Member
from ringleader.train.rows.loader_processes import LoaderProcesses
from ringleader.train.rows.order.batch_sizes import shard_span
from ringleader.train.rows.random_streams import (
    Generator,
    generators_of,
    own_generators,
    resumed_behind,
    seed_all,
    seed_own,
)
from ringleader.train.rows.short_batch import WHERE_ROWS_COME_FROM
from ringleader.train.rows.slices import Collate, Slice, load, to_device
from ringleader.train.state.parameters.evaluation_mode import EvaluationMode
from ringleader.train.state.parameters.scored_attributes import CURE, SET, ScoredAttributes

MAX_SCORES = 32
SCORE_HINT = (
    "score(batch) returns one value a row for every name, and evaluate makes the mean: "
    "return {'accuracy': (prediction == label)}."
)
WITHOUT_ROWS = "the data set of an evaluation has no rows: it has no scores."
Score = Callable[[Any], Mapping[str, Tensor]]


@dataclass(frozen=True, slots=True)
class EvaluationRequest:
    """One evaluation's input: the dataset, and `score(batch)`, which gives per-row values by name."""

    dataset: Any
    score: Score
    collate: Collate | None
    loader_workers: int
    loaders: LoaderProcesses


@dataclass(frozen=True, slots=True)
class EvaluationPlace:
    """The place of an evaluation in the program.

    Attributes:
        number: of the session call: its own, or of the loop that it is in.
        stream: the name of its random streams.
        known: gives the scores where they are committed.
        finish: commits them.
    """

    number: int
    stream: tuple[int | str, ...]
    known: Callable[[], Mapping[str, float] | None]
    finish: Callable[[dict[str, float]], None]

    @classmethod
    def of_call(cls, member: Member, number: int) -> "EvaluationPlace":
        """The session call of that number."""
        calls = member.progress.calls

        def known() -> Mapping[str, float] | None:
            return calls.finished[number].result if calls.is_finished(number) else None

        return cls(number, ("evaluate", number), known, partial(member.finish_call, number))


class Evaluation:
    """A session's evaluations, one after the other.

    Attributes:
        scores: those of the newest one.
    """

    def __init__(self, member: Member, calls: CallSequence, device: torch.device, casting: Autocast) -> None:
        self._member = member
        self._calls = calls
        self._device = device
        self._casting = casting
        self.scores: dict[str, float] = {}

    def result(self, place: EvaluationPlace, question: EvaluationRequest) -> dict[str, float]:
        """The means at that place of the program: those that are committed, or computed now."""
        known = place.known()
        if known is None:
            if not len(question.dataset):
                self._member.warnings.add("data", WITHOUT_ROWS, WHERE_ROWS_COME_FROM)
            drawn_from = [*own_generators((question.dataset, question.collate)), *self._generators]
            with resumed_behind(drawn_from):
                known = self._run(place, question)
            self._calls.tell_between()
        self.scores = dict(known)
        return dict(known)

    @torch.inference_mode(
        False
    )  # the program's may be on: members would exchange tensors that nobody can write to
    def _run(self, place: EvaluationPlace, question: EvaluationRequest) -> Mapping[str, float]:
        """Compute the mean of every score over all rows, the same number on every member and for any world."""
        member = self._member
        sums: dict[int, Tensor] = {}
        names: list[str] = []
        while True:
            member.enter()
            if (known := place.known()) is not None:
                return known
            exchange = member.generation.exchange
            self._calls.report_phase("evaluate")
            # Sums outlive a broken generation: only shards that this member has gained are scored again.
            missing = [k for k in member.generation.plan.shards_of(member.generation.rank) if k not in sums]
            member.timeline.begin("evaluate", call=place.number)
            try:
                names = self._sum(question, missing, sums, place) or names or self._names(question)
            except StepMisuse as error:
                self._calls.raise_later(error)
                raise
            member.timeline.end()
            try:
                pending = self._meet(exchange, place.number, EVALUATE)
                if pending is None:
                    member.lines.take_over()
                    # The weights may be another member's now, and these sums were made with the ones before.
                    sums.clear()
                    continue
                reduced = exchange.all_reduce(self._table(sums))
            except ExchangeBroken as error:
                member.broke(error)
                continue
            return self._commit(place, names, reduced, pending)

    def barrier(self, number: int, before: Callable[[], None] = lambda: None) -> None:
        """Run a transaction without a step, behind the program's end: once it is through, everything before it is
        settled. Raises CallMismatch: the program has made fewer calls here than on the others.

        Args:
            before: called in each generation that comes to the barrier; may raise ExchangeBroken.
        """
        while True:
            self._member.enter()
            if self._member.progress.calls.is_finished(number):
                self._member.variables.check_ended(number)
                return
            self._calls.report_phase("finish")
            try:
                before()
                if self._meet(self._member.generation.exchange, number, BARRIER) is None:
                    continue
            except ExchangeBroken as error:
                self._member.broke(error)
                continue
            self._member.finish_call(number)
            self._member.progress.calls.end(number)
            self._member.progress.commit_transaction()
            return

    def _commit(
        self, place: EvaluationPlace, names: Sequence[str], table: Tensor, pending: bool
    ) -> dict[str, float]:
        member = self._member
        # Members sum the table over shards in one order: float addition is not associative.
        total = table.sum(dim=0).tolist()
        # At least 1: an empty dataset has no rows to divide by.
        scores = {name: total[1 + slot] / max(total[0], 1.0) for slot, name in enumerate(names)}
        place.finish(scores)
        member.progress.commit_transaction()
        member.reporter.add_scores(member.progress.step, member.generation.number, scores)
        if pending:
            member.leave_at_planned_boundary()
        else:
            member.donations.answer()
        return scores

    def _sum(
        self,
        question: EvaluationRequest,
        shards: Sequence[int],
        sums: dict[int, Tensor],
        place: EvaluationPlace,
    ) -> list[str]:
        """Fill `sums` with (1 + MAX_SCORES,) float64 per shard: rows, then the sum of each score."""
        names: list[str] = []
        pieces = [piece for shard in shards for piece in self._pieces(question, shard, place)]
        fresh = {shard: torch.zeros(1 + MAX_SCORES, dtype=torch.float64) for shard in shards}
        batches = question.loaders.load(
            place.stream,
            question.dataset,
            iter(pieces),
            question.collate,
            question.loader_workers,
        )
        own = self._generators
        with self._eval_mode(question.score) as mode:
            for piece, batch in zip(pieces, batches, strict=True):
                self._calls.report_phase("evaluate")
                mode.begin_piece()
                self._seed(piece, own)
                values = self._score(question, batch)
                names = _checked_names(values)
                fresh[piece.shard][0] += len(piece.rows)
                for slot, name in enumerate(names):
                    fresh[piece.shard][1 + slot] += _row_sum(name, values[name], len(piece.rows))
        sums.update(fresh)
        return names

    @property
    def _generators(self) -> list[tuple[str, Generator]]:
        return generators_of(self._member.held.models)

    def _seed(self, piece: Slice, own: Sequence[tuple[str, Generator]]) -> None:
        """Seed every stream by the slice: a score's draws must not depend on what was scored or loaded here before."""
        seed = self._member.spec.seed
        seed_all(seed, "score", *piece.stream)
        seed_own(own, seed, "score", *piece.stream)

    def _pieces(self, question: EvaluationRequest, shard: int, place: EvaluationPlace) -> list[Slice]:
        """A shard's rows in chunks of the training slice's size, so that chunks do not depend on the world."""
        spec = self._member.spec
        low, high = shard_span(shard, len(question.dataset), spec.shards)
        size = -(-spec.batch.global_size // spec.shards)
        return [
            Slice((*place.stream, start), shard, np.arange(start, min(start + size, high), dtype=np.int64))
            for start in range(low, high, size)
        ]

    def _names(self, question: EvaluationRequest) -> list[str]:
        """The scores' names for a member without rows, which scores the first row of the dataset to learn them."""
        piece = Slice(("evaluate", "names"), 0, np.arange(min(1, len(question.dataset)), dtype=np.int64))
        if not len(piece.rows):
            return []
        batch = next(load(question.dataset, [piece], seed=0, collate=question.collate))
        with self._eval_mode(question.score):
            return _checked_names(self._score(question, batch))

    def _score(self, question: EvaluationRequest, batch: Any) -> Any:
        """The user's values of one batch, in the job's precision."""
        with self._casting.body():
            return question.score(to_device(batch, self._device))

    def _meet(self, exchange: Exchange, number: int, kind: int) -> bool | None:
        """Check that all members are at the same call. Returns whether a plan is pending; None where members differed
        and have been levelled: what this one computed then counts for nothing."""
        member = self._member
        member.comparison.begin(number)
        word = member.layout.write(
            rank=member.generation.rank,
            call=number,
            kind=kind,
            step=member.progress.step,
            pending=member.coordinator.plan_pending(),
            said=member.comparison.said,
        )
        reduced = exchange.meet(word)
        member.check(reduced)
        if member.comparison.differs(reduced):
            member.comparison.correct(reduced)
            return None
        member.comparison.agreed(number)
        return member.layout.pending(reduced, world=len(member.generation.plan.members))

    def _table(self, sums: Mapping[int, Tensor]) -> Tensor:
        """(shards, 1 + MAX_SCORES) float64, the rows of this member's shards only."""
        member = self._member
        # One member writes a shard's row and all others zeros, so that the reduced table is exact in any order.
        table = torch.zeros(member.spec.shards, 1 + MAX_SCORES, dtype=torch.float64)
        for shard in member.generation.plan.shards_of(member.generation.rank):
            if shard in sums:
                table[shard] = sums[shard]
        return table

    def _eval_mode(self, score: Score) -> EvaluationMode:
        models, warnings = self._member.held.models, self._member.warnings

        def tell(kind: str, name: str, line: str) -> None:
            warnings.add("score", SET.format(kind, name, line), CURE)

        attributes = ScoredAttributes(models, score, self._member.unkept.may_matter, tell)
        return EvaluationMode(models, self._member.buffers, attributes)


def _checked_names(values: Any) -> list[str]:
    """The scores' names. Raises StepMisuse: they have none, or are too many."""
    if not isinstance(values, Mapping):
        raise StepMisuse(f"score returned {_told(values)} instead of values by name.", hint=SCORE_HINT)
    if len(values) > MAX_SCORES:
        raise StepMisuse(
            f"score returned {len(values)} values.", hint=f"Evaluate at most {MAX_SCORES} at a time."
        )
    return sorted(values)


def _row_sum(name: str, values: Any, rows: int) -> Tensor:
    """() float64 over the rows. Raises StepMisuse: there is not one value for each."""
    if not isinstance(values, Tensor):
        raise StepMisuse(f"score {name!r} is {_told(values)}, not a tensor.", hint=SCORE_HINT)
    if values.shape[:1] != (rows,):
        raise StepMisuse(f"score {name!r} has shape {tuple(values.shape)} for {rows} rows.", hint=SCORE_HINT)
    return values.detach().to(torch.float64).reshape(rows, -1).mean(dim=1).sum().cpu()


def _told(value: Any) -> str:
    if isinstance(value, Tensor):
        return f"a tensor of shape {tuple(value.shape)}"
    return f"{reprlib.repr(value)}, a {type(value).__name__}"
