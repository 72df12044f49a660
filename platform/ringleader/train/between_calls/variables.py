"""The program's variables at its session calls, compared between members that came to a call with the others and those
that run the lines before it again.

A variable that differs there is made of something that the session does not know: a clock, a file, a generator without
a seed, a loop's body. The job goes on, and its result says so.
"""

import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import torch
from torch.optim import Optimizer

from ringleader.errors import CallMismatch, ExchangeBroken
from ringleader.train.between_calls.boundaries import MODELS
from ringleader.train.between_calls.data_parts import data_parts
from ringleader.train.between_calls.findings import (
    BODY_CURE,
    DIFFERS,
    NO_HARM,
    VariableFinding,
)
from ringleader.train.between_calls.loop_names import names_of_bounds
from ringleader.train.between_calls.program_files import ProgramFiles
from ringleader.train.between_calls.sections import ProgramSections
from ringleader.train.between_calls.text_comparison import TextComparison, number_of
from ringleader.train.between_calls.value_fingerprints import ValueReader, is_generator
from ringleader.train.generation.agreement import BRANCH_ON
from ringleader.train.generation.context import MemberContext
from ringleader.train.job_warnings import JobWarnings
from ringleader.train.source.current_line import INSTALLED, PACKAGES, running_frames
from ringleader.train.source.dataset_caches import kept_rows, reads_rows
from ringleader.train.source.loop_bodies import SourceText, text_of
from ringleader.train.source.program_scope import Key
from ringleader.train.state.optimizers.own_attributes import COMMITTED, OF_TORCH

CALLS = 64
"""The number of session calls, the newest ones, whose variables are kept."""
SENTENCE_BYTES = 400
MOST_NAMED = 3
CURE = (
    "compute it from session.params, session.loss or the result of session.evaluate, seed generators, and keep state "
    "from outside of the program with session.keep(name, object)"
)
DATA_CURE = (
    "a row's number must mean the same row on every worker: seed the generator that splits or shuffles, and sort what "
    "a folder or a set lists"
)
IN_PLACE_CURE = (
    f"give a buffer or weight its values with copy_, not by assignment, and keep a clone() of it; else {CURE}"
)
READ_CURE = (
    "the top of the program, which runs on each worker that comes later, too, has read {}, which has changed since the "
    "job began. The job itself goes on from where it was: leave such lines out, or begin with init_from"
)
NOTHING = repr(None)
"""The text of None: what a data set opens at its first read is None until then, on some members for ever."""
AMONG_WORKERS = "differs between workers"
Texts = dict[str, str]


@dataclass(frozen=True, slots=True)
class _Spot:
    """The place of a variable: a frame, the text of its file, and the name there."""

    frame: FrameType
    text: SourceText
    name: str


class ProgramVariables:
    """One member's variables. Those seen at calls, and the findings, are healed and checkpointed."""

    def __init__(self, context: MemberContext, sections: ProgramSections, warnings: JobWarnings) -> None:
        self._context = context
        self._sections = sections
        self._warnings = warnings
        self._matters = context.same_bits
        self._seen: dict[int, Texts] = {}
        self._own: Texts = {}
        self._named: Texts = {}
        self._not_everywhere: set[str] = set()
        self._own_call = -1
        self._read_ids: set[int] = set()
        self._lines: dict[str, tuple[str, str]] = {}
        self._lines_before: dict[CodeType, int] = {}
        self._lines_now: dict[CodeType, int] = {}
        self._known: Any = {}
        self._told_by_others = ""
        self._untold: list[dict[str, Any]] = []
        self.found: dict[str, VariableFinding] = {}
        self.files = ProgramFiles(context, warnings)

    @property
    def why_other_bits(self) -> str:
        """The variables that differ, with their lines and the cure; empty where nothing was found."""
        if not self.found:
            return self._told_by_others
        first, *others = self.found.values()
        also = ", ".join(f"{each.variable} ({each.line})" for each in others[:MOST_NAMED])
        return f"the program's {first.sentence}{'; also ' if also else ''}{also}"

    def look(self, number: int, dataset: Any = None) -> None:
        """Read the variables as call `number` begins, and compare them where the lines before it ran again.

        Args:
            dataset: whose rows the call goes over; None where it has none.
        """
        self.files.look(again=self._sections.catches_up)
        if not self._matters:
            return
        self._tell_found()
        self._lines_before = self._lines_now
        self._lines_now = self._lines_now | {frame.f_code: frame.f_lineno for frame in running_frames()}
        sections = self._sections
        self._named = {}
        if sections.catches_up and not sections.on_recorded:
            return
        self._own, self._lines, self._own_call, self._read_ids = {}, {}, number, set()
        self._read(number, dataset, ValueReader(self._context.held, self._known))
        if sections.catches_up:
            self._named = {}  # what they made is compared with what the others saw
            self._compare(self._seen.get(number, {}))
        else:
            self._seen[number] = self._own
            self._seen.pop(number - CALLS, None)

    def fingerprint(self, number: int) -> int:
        """A number below 2**48 for the variables with which this member came to call `number`; 0 where it has none to
        compare, as it has run their lines again."""
        return number_of(self.files.texts | self._not_found()) if self._own_call == number else 0

    def name_differing(self, ranks: Sequence[int]) -> None:
        """Find out which variables differ between members of these ranks, who came to a call with different ones. All
        members call this together. Raises ExchangeBroken."""
        generation = self._context.generation
        files = self.files.texts
        mine = self._not_found() | files if generation.rank in ranks else {}
        compared = TextComparison(generation, mine, ranks)
        self._not_everywhere |= compared.not_everywhere
        if generation.rank in ranks:
            self.files.compared({*compared.differing, *compared.not_everywhere})
        for name in compared.differing:
            if name in files:
                continue
            finding = VariableFinding(name.rpartition(":")[2], *self._lines[name], how=AMONG_WORKERS)
            self.find_together(finding, compared.first(name))

    def tell(self) -> None:
        """Tell all members, who call this together, what one has found. Raises ExchangeBroken."""
        generation = self._context.generation
        if not self._matters:
            return
        said = torch.zeros(len(generation.plan.members), SENTENCE_BYTES, dtype=torch.float64)
        mine = self.why_other_bits.encode()[:SENTENCE_BYTES]
        said[generation.rank, : len(mine)] = torch.tensor(list(mine), dtype=torch.float64)
        rows = generation.exchange.all_reduce(said).to(torch.uint8)
        # The cut to SENTENCE_BYTES may have split a character.
        told = [bytes(row.tolist()).rstrip(b"\0").decode(errors="ignore") for row in rows]
        self._told_by_others = next(filter(None, told), "")

    def explained(self, error: CallMismatch) -> CallMismatch:
        """The error, with the variables that one of the members has found to differ: all call this together."""
        with suppress(ExchangeBroken):
            self.tell()
        why = self.why_other_bits
        return CallMismatch(f"{error.message} It may come of this: {why}.", hint=error.hint) if why else error

    def ended_early(self, calls: int, finished: int) -> CallMismatch:
        """The error for a program that ends behind so many calls where more are finished."""
        why = self.why_other_bits
        told = f"the program ended after {calls} session calls on this worker, and {finished} are over for the others."
        return CallMismatch(f"{told}{f' It may come of this: {why}.' if why else ''}", hint=BRANCH_ON)

    def state(self, since: int = 0) -> dict[str, Any]:
        """The variables at the begin of calls from number `since` on, and the findings."""
        seen = {number: texts for number, texts in self._seen.items() if number >= since}
        found = [asdict(finding) for finding in self.found.values()]
        return {"seen": seen, "found": found, "read": self.files.state()}

    def restore(self, state: dict[str, Any]) -> None:
        """Take over others' variables and findings. Their state is of the call that has begun here, or a later one.

        Raises:
            CallMismatch: a variable that says how many calls come has another value, as of a file that was read.
        """
        seen: dict[int, Texts] = state.get("seen", {})
        self.files.restore(state.get("read"))
        if self._own_call == self._context.progress.calls.next - 1:
            self._compare(seen.get(self._own_call, {}))
        self._seen |= seen
        for finding in state.get("found", []):
            self.found.setdefault(finding["variable"], VariableFinding(**finding))

    def find_beforehand(self, finding: VariableFinding) -> None:
        """Report a variable that would differ on a joiner: nobody has run lines again so far."""
        if self._add_found(finding, finding.beforehand):
            print(f"ringleader: {NO_HARM}, but the program's {finding.sentence}.")

    def find(self, finding: VariableFinding) -> None:
        """Report a variable that is not what it would be on another number of workers."""
        if self._add_found(finding, asdict(finding)):
            print(f"ringleader: the weights may not be reproducible: the program's {finding.sentence}.")

    def find_together(self, finding: VariableFinding, first: int) -> None:
        """Keep what several members find alike: the one of rank `first` reports it, so that the event comes once."""
        if self._context.generation.rank == first:
            self.find(finding)
        else:
            self.found.setdefault(finding.variable, finding)

    def _not_found(self) -> Texts:
        """The variables to compare with others: what a member has found it has told, and nobody tells it again."""
        return {
            name: text
            for name, text in self._named.items()
            if name.rpartition(":")[2] not in self.found and name not in self._not_everywhere
        }

    def _compare(self, theirs: Texts) -> None:
        read = self.files.read_since
        for name, text in self._own.items():
            if theirs.get(name, text) != text:
                line, cure = self._lines[name]
                variable = name.rpartition(":")[2]
                self.find(VariableFinding(variable, line, READ_CURE.format(read) if read else cure))
                if read and variable in names_of_bounds(running_frames()):
                    raise CallMismatch(f"the program's {self.found[variable].sentence}.", hint=BRANCH_ON)

    def _add_found(self, finding: VariableFinding, told: dict[str, Any]) -> bool:
        """Keep a finding, and report it, if it is new. Returns whether it is."""
        if finding.variable in self.found:
            return False
        self.found[finding.variable] = finding
        self._untold.append(told)
        self._tell_found()
        return True

    def _tell_found(self) -> None:
        """Report findings, once there is a seat: a worker that never gets one makes no difference."""
        generation = self._context.current
        if generation is not None:
            untold, self._untold = self._untold, []
            for told in untold:
                self._context.reporter.say(DIFFERS, generation.number, told)

    def _read(self, number: int, dataset: Any, reader: ValueReader) -> None:
        frames = list(running_frames())
        for frame in frames:
            text = text_of(frame.f_code.co_filename)
            if text is not None and frame.f_code.co_name != "<module>":
                self._read_frame(frame, text, reader)
        self._read_data(dataset, frames, reader)
        self._named = {name: text for name, text in self._own.items() if text != NOTHING}
        self._read_state(number, frames, reader)

    def _read_frame(self, frame: FrameType, text: SourceText, reader: ValueReader) -> None:
        scope = text.scope_at(frame.f_lineno)
        for name, value in frame.f_locals.items():
            self._read_one(_Spot(frame, text, name), scope.key(name), value, reader)
            if is_users(value):
                kind: Any = type(value)
                reads, kept = reads_rows(kind), kept_rows(kind)
                # State and settings of an optimiser are committed, and differ by member where servers have them.
                kept = kept | (COMMITTED | OF_TORCH if isinstance(value, Optimizer) else frozenset())
                for attribute, part in list(vars(value).items()):
                    # A data set's generator is seeded for each slice.
                    if attribute in kept or (reads and is_generator(part)):
                        continue
                    self._read_one(
                        _Spot(frame, text, f"{name}.{attribute}"), ("", f".{attribute}"), part, reader
                    )
        for name in _globals_of(text, scope.name):
            value = frame.f_globals.get(name)
            if name in text.changing_globals or is_generator(value):
                self._read_one(_Spot(frame, text, name), ("", name), value, reader)

    def _read_data(self, dataset: Any, frames: list[FrameType], reader: ValueReader) -> None:
        """Read what says which rows the data set has, where no variable does."""
        variables = {name: value for frame in reversed(frames) for name, value in frame.f_locals.items()}
        name = next((name for name, value in variables.items() if value is dataset), "data set")
        for shown, part in data_parts(dataset, name) if frames else ():
            if shown in self._lines or id(part) in self._read_ids:
                continue
            told = reader.text(part)
            if told is not None:
                self._own[shown] = told
                self._lines[shown] = (place_of(frames[0], frames[0].f_lineno), DATA_CURE)

    def _read_one(self, spot: "_Spot", key: Key, value: Any, reader: ValueReader) -> None:
        # What changes a view of the weights affects training, even where nothing reads the variable.
        if not spot.text.compared(key, spot.frame.f_lineno) and not (
            self._may_have_changed(spot, key) and reader.shows_weights(value)
        ):
            return
        told = reader.text(value)
        if told is not None:
            code = spot.frame.f_code
            line = spot.text.line_of(key, spot.frame.f_lineno)
            shown = f"{code.co_qualname}:{spot.name}"
            self._own[shown] = told
            if isinstance(value, list | dict | torch.Tensor):
                self._read_ids.add(id(value))
            outside = IN_PLACE_CURE if reader.met_weights else CURE
            cure = BODY_CURE if key in spot.text.inside else outside
            self._lines[shown] = (f"{Path(code.co_filename).name}:{line}", cure)

    def _may_have_changed(self, spot: "_Spot", key: Key) -> bool:
        frame, before = spot.frame, self._lines_before.get(spot.frame.f_code, 0)
        return spot.text.augmented.may_have_run(key, frame.f_code, before, frame.f_lineno)

    def _read_state(self, number: int, frames: list[FrameType], reader: ValueReader) -> None:
        """Read the session's state as the lines left it: settings, small kept objects, weights that were touched."""
        held, before = self._context.held, self._sections.before(number)
        for place, (optimizer, _) in enumerate(held.optimizers):
            which = f"optimizers[{place}]" if len(held.optimizers) > 1 else "optimizer"
            for group_number, group in enumerate(optimizer.param_groups):
                for key, value in group.items():
                    if key != "params":
                        self._add(
                            f"{which}.param_groups[{group_number}][{key!r}]", key, value, frames, reader
                        )
        if before is None:
            return
        for name in before.kept.keys() & held.kept.keys():
            self._add(f"the kept object {name!r}", name, dict(held.kept[name].state_dict()), frames, reader)
        if MODELS in before.tensors:
            everything = ValueReader(type(held)(), self._known)  # weights too
            for place, model in enumerate(held.models):
                for name, value in model.state_dict().items():
                    self._add(f"the weights {place}.{name}", name, value, frames, everything)

    def _add(self, shown: str, key: str, value: Any, frames: list[FrameType], reader: ValueReader) -> None:
        told = reader.text(value)
        if told is not None:
            self._own[shown] = told
            self._lines[shown] = (_line_of_item(key, frames), CURE)


def _line_of_item(key: str, frames: list[FrameType]) -> str:
    """The place that stores under that key in the running functions, else the line that runs."""
    if not frames:
        return "the end of the program"
    for frame in frames:
        text = text_of(frame.f_code.co_filename)
        line = text.line_of_item(key, frame.f_lineno) if text is not None else 0
        if line:
            return place_of(frame, line)
    return place_of(frames[0], frames[0].f_lineno)


def place_of(frame: FrameType, line: int) -> str:
    """The place of a line in that function's file, as "file:line"."""
    return f"{Path(frame.f_code.co_filename).name}:{line}"


@lru_cache(maxsize=256)
def _globals_of(text: SourceText, scope: str) -> frozenset[str]:
    """The names in a function's text, and in those of the functions that it calls."""
    return frozenset(text.names_in(text.reached_from({scope})))


def is_users(value: Any) -> bool:
    """Whether the value is an object, with attributes, of a class of the program's own."""
    module = sys.modules.get(type(value).__module__)
    file = str(getattr(module, "__file__", "") or "")
    plain = not isinstance(value, torch.nn.Module | type) and hasattr(value, "__dict__")
    return plain and bool(file) and not file.startswith((*PACKAGES, *INSTALLED))
