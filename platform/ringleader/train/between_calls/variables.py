"""The program's variables at its session calls, compared between members that came to a call with the others and those
that run the lines before it again.

A variable that differs there is made of something that the session does not know: a clock, a file, a generator without
a seed, a loop's body. The job goes on, and its result says so.
"""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict
from types import CodeType
from typing import Any

from ringleader.errors import CallMismatch, ExchangeBroken
from ringleader.program_text.current_line import running_frames
from ringleader.train.between_calls.call_variables import NOTHING, CallVariables, Texts
from ringleader.train.between_calls.files.program_files import ProgramFiles
from ringleader.train.between_calls.findings import VariableFinding
from ringleader.train.between_calls.loop_names import names_of_bounds
from ringleader.train.between_calls.objects.value_kinds import plain_name
from ringleader.train.between_calls.sections import ProgramSections
from ringleader.train.between_calls.text_comparison import TextComparison, number_of
from ringleader.train.generation.agreement import BRANCH_ON
from ringleader.train.generation.comparing.member_findings import told_together
from ringleader.train.generation.context import MemberContext
from ringleader.train.job_warnings import JobWarnings
from ringleader.wire.findings import DIFFERS, NO_HARM, why_of

CALLS = 64
"""The number of session calls, the newest ones, whose variables are kept."""
READ_CURE = (
    "the top of the program, which runs on each worker that comes later, too, has read {}, which has changed since the "
    "job began. The job itself goes on from where it was: leave such lines out, or begin with init_from"
)
AMONG_WORKERS = "differs between workers"


class ProgramVariables:
    """One member's variables. Those seen at calls, and the findings, are healed and checkpointed.

    Attributes:
        passing: attributes that turns have set before they read them.
        found: the findings, by variable.
        files: those that the program reads and writes.
    """

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
        self._lines: dict[str, tuple[str, str]] = {}
        self._lines_before: dict[CodeType, int] = {}
        self._lines_now: dict[CodeType, int] = {}
        self._known: Any = {}
        self._told_by_others = ""
        self._untold: list[dict[str, Any]] = []
        self.passing: set[str] = set()
        self.found: dict[str, VariableFinding] = {}
        self.files = ProgramFiles(context, warnings)

    @property
    def why_other_bits(self) -> str:
        """The variables that differ, with their lines and the cure; empty where nothing was found."""
        return why_of(map(asdict, self.found.values())) or self._told_by_others

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
        read = CallVariables(self._context.held, self._known, self._lines_before, self.passing)
        read.add_variables(dataset)
        self._named = {name: text for name, text in read.texts.items() if text != NOTHING}
        read.add_state(sections.before(number))
        self._own, self._lines, self._own_call = read.texts, read.lines, number
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
            finding = VariableFinding(variable_of(name), *self._lines[name], how=AMONG_WORKERS)
            self.find_together(finding, compared.first(name))

    def tell(self) -> None:
        """Tell all members, who call this together, what one has found. Raises ExchangeBroken."""
        if self._matters:
            self._told_by_others = told_together(self._context, self.why_other_bits)

    def explained(self, error: CallMismatch) -> CallMismatch:
        """The error, with the variables that one of the members has found to differ: all call this together."""
        with suppress(ExchangeBroken):
            self.tell()
        why = self.why_other_bits
        return CallMismatch(f"{error.message} It may come of this: {why}.", hint=error.hint) if why else error

    def check_ended(self, number: int) -> None:
        """Check, after the program's end, that a call that is over is no loop or evaluation. Raises CallMismatch."""
        calls, why = self._context.progress.calls, self.why_other_bits
        if calls.ended is not None and number >= calls.ended:
            return
        over = f"and {len(calls.finished)} are over for the others."
        told = f"the program ended after {number} session calls on this worker, {over}"
        raise CallMismatch(f"{told}{f' It may come of this: {why}.' if why else ''}", hint=BRANCH_ON)

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
            print(f"ringleader: {NO_HARM}, but {finding.sentence}.")

    def find(self, finding: VariableFinding) -> None:
        """Report a variable that is not what it would be on another number of workers."""
        if self._add_found(finding, asdict(finding)):
            print(f"ringleader: the weights may not be reproducible: {finding.sentence}.")

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
            if variable_of(name) not in self.found and name not in self._not_everywhere
        }

    def _compare(self, theirs: Texts) -> None:
        read = self.files.read_since
        for name, text in self._own.items():
            if theirs.get(name, text) != text:
                line, cure = self._lines[name]
                variable = variable_of(name)
                self.find(VariableFinding(variable, line, READ_CURE.format(read) if read else cure))
                if read and variable in names_of_bounds(running_frames()):
                    raise CallMismatch(f"{self.found[variable].sentence}.", hint=BRANCH_ON)

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


def variable_of(name: str) -> str:
    """The variable, as a finding tells it, by the name of its text."""
    return plain_name(name.rpartition(":")[2])
