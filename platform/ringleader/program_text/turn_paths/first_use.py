"""What statements do first with a variable, on each of the ways that Python may go through them.

A way ends at `raise`, `return` and `sys.exit()`; `break` and `continue` go on where the loop around them says.
"""

import ast
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from ringleader.program_text.program_scope import Function, name_of
from ringleader.program_text.statement_order import binds, names, overwrites, read_line
from ringleader.program_text.turn_paths.known_tests import (
    UNKNOWN,
    Facts,
    KnownTests,
    Settled,
    changed_in_place,
    stored_by,
)

_EXITS = frozenset(["exit", "_exit", "quit", "abort", "assert_never"])
_EXITING = frozenset(["sys", "os", "typing"])
_MOST_WAYS = 16

Ways = frozenset[Facts]
"""The ways on which nothing has used the variable yet, each as what is known there."""
NONE: Ways = frozenset()


class Ends(NamedTuple):
    """The ways out of statements on which they have neither read nor set the variable."""

    on: Ways = NONE
    broken: Ways = NONE
    continued: Ways = NONE


def first(nodes: Sequence[ast.AST], name: str, lines: set[int], settled: Settled = UNKNOWN) -> int | None:
    """The first use of a variable in a turn, or in a function: the line of a read; 0 where all ways set it, None where
    there is one with neither.

    Args:
        name: ".name" for an attribute.
        lines: the lines in which it is read.
        settled: what else sets what tests read.
    """
    use = _FirstUse(nodes, name, lines, settled)
    ends = use.block(nodes, frozenset([frozenset()]))
    return use.read or (None if ends.on else 0)


def first_behind(nodes: Sequence[ast.AST], name: str, lines: set[int]) -> int | None:
    """The same for statements inside of a block, which `break` and `continue` leave with neither."""
    use = _FirstUse(nodes, name, lines, UNKNOWN)
    ends = use.block(nodes, frozenset([frozenset()]))
    return use.read or (None if any(ends) else 0)


class _FirstUse:
    """The first use of one variable.

    Attributes:
        read: the line of the first read that a way reaches before the variable is set; 0 while there is none.
    """

    def __init__(self, nodes: Sequence[ast.AST], name: str, lines: set[int], settled: Settled) -> None:
        self.read = 0
        self._nodes = nodes
        self._name = name
        self._lines = lines
        self._tests = KnownTests(settled)
        self._at: ast.AST = ast.Pass()

    def block(self, nodes: Iterable[ast.AST], ways: Ways) -> Ends:
        broken = continued = NONE
        for node in nodes:
            if not ways:
                break
            ends = self._node(node, ways)
            ways, broken, continued = ends.on, broken | ends.broken, continued | ends.continued
        return Ends(NONE, NONE, NONE) if self.read else Ends(_few(ways), _few(broken), _few(continued))

    def _node(self, node: ast.AST, ways: Ways) -> Ends:
        match node:
            case ast.If(test=test):
                yes, no = self._test(test, ways)
                ends = _either(self.block(node.body, yes), self.block(node.orelse, no))
            case ast.For() | ast.AsyncFor():
                ends = self._for(node, ways)
            case ast.While():
                ends = self._while(node, ways)
            case ast.Try() | ast.TryStar():
                ends = self._try(node, ways)
            case ast.With() | ast.AsyncWith():
                ends = self._with(node, ways)
            case ast.Match():
                ends = self._match(node, ways)
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                ends = self._definition(node, ways)
            case ast.Break():
                ends = Ends(broken=ways)
            case ast.Continue():
                ends = Ends(continued=ways)
            case _:
                ends = Ends(self._simple(node, ways))
        return ends

    def _simple(self, node: ast.AST, ways: Ways) -> Ways:
        """The ways on from a statement that has none inside, or from an expression."""
        if overwrites(node, self._name):
            return NONE
        self._at = node
        match node:
            case ast.Assign(targets=targets, value=value):
                ways = self._parts([value, *targets], ways)
            case ast.AnnAssign(target=target, value=value):
                ways = self._parts([value, target], ways) if value is not None else ways
            case ast.AugAssign(target=target, value=value):
                if binds(target, self._name):
                    ways = self._reads(ways)
                ways = self._parts([value, target], ways)
            case _:
                ways = self._expression(node, ways)
        return NONE if isinstance(node, ast.Return) or raises(node) else self._changed(node, ways)

    def _expression(self, node: ast.AST, ways: Ways) -> Ways:
        match node:
            case ast.ListComp() | ast.SetComp() | ast.DictComp() | ast.GeneratorExp() | ast.Lambda():
                return self._reads(ways) if names(node, self._name) else ways
            case ast.BoolOp():
                yes, no = self._test(node, ways)
                return yes | no
            case ast.IfExp(test=test, body=body, orelse=orelse):
                yes, no = self._test(test, ways)
                return self._expression(body, yes) | self._expression(orelse, no)
        parts = [node.value, node.target] if isinstance(node, ast.NamedExpr) else ast.iter_child_nodes(node)
        ways = self._parts(parts, ways)
        if isinstance(node, ast.Name | ast.Attribute) and self._is_it(node):
            return NONE if isinstance(node.ctx, ast.Store) else self._reads(ways)
        return ways

    def _parts(self, nodes: Iterable[ast.AST], ways: Ways) -> Ways:
        for node in nodes if ways else ():
            ways = self._expression(node, ways)
        return ways

    def _is_it(self, node: ast.Name | ast.Attribute) -> bool:
        own = node.id if isinstance(node, ast.Name) else f".{node.attr}"
        return own == self._name and not isinstance(node.ctx, ast.Del)

    def _reads(self, ways: Ways) -> Ways:
        """A read of the variable: it finds what an earlier turn left where one may leave it under the same facts."""
        line = read_line(self._at, self._lines)
        if line and ways and (not self._sets(frozenset()) or any(map(self._sets, ways))):
            self.read = self.read or line
            return NONE
        return ways

    def _sets(self, facts: Facts) -> bool:
        """Whether a turn may change the variable where those of the facts hold that are the same in all turns."""
        return self._set_in(self._nodes, self._tests.of_all_turns(facts))

    def _set_in(self, nodes: Iterable[ast.AST], facts: Facts) -> bool:
        return any(
            self._name in stored_by(node)
            or self._name in changed_in_place(node)
            or self._set_in(self._inside(node, facts), facts)
            for node in nodes
        )

    def _inside(self, node: ast.AST, facts: Facts) -> Iterator[ast.AST]:
        """What of a node may run."""
        left_out: Sequence[ast.AST] = ()
        if isinstance(node, ast.If):
            holds = self._tests.holds(node.test, facts)
            left_out = node.body if holds is False else (node.orelse if holds else ())
        elif isinstance(node, ast.For) and self._tests.has_items(node.iter, facts) is False:
            left_out = [node.target, *node.body]
        return (child for child in ast.iter_child_nodes(node) if child not in left_out)

    def _test(self, test: ast.expr, ways: Ways) -> tuple[Ways, Ways]:
        """The ways on from a test: where it holds, and where it does not."""
        match test:
            case ast.UnaryOp(op=ast.Not(), operand=operand):
                yes, no = self._test(operand, ways)
                return no, yes
            case ast.BoolOp(op=sign, values=values):
                return self._all(values, ways) if isinstance(sign, ast.And) else self._any(values, ways)
        self._at = test
        ways = NONE if overwrites(test, self._name) else self._changed(test, self._expression(test, ways))
        known = {facts: self._tests.holds(test, facts) for facts in ways}
        yes, no = (
            frozenset(
                self._tests.with_test(test, held, facts) for facts in ways if known[facts] is not (not held)
            )
            for held in (True, False)
        )
        return yes, no

    def _all(self, values: Sequence[ast.expr], ways: Ways) -> tuple[Ways, Ways]:
        failed = NONE
        for value in values:
            ways, no = self._test(value, ways)
            failed |= no
        return ways, failed

    def _any(self, values: Sequence[ast.expr], ways: Ways) -> tuple[Ways, Ways]:
        held = NONE
        for value in values:
            yes, ways = self._test(value, ways)
            held |= yes
        return held, ways

    def _changed(self, node: ast.AST, ways: Ways) -> Ways:
        return frozenset(self._tests.behind(node, facts) for facts in ways)

    def _for(self, node: ast.For | ast.AsyncFor, ways: Ways) -> Ends:
        ways = self._simple(node.iter, ways)
        # A loop over what no turn changes, as `range(steps)` or `self.layers`, has turns in all turns around it, or in
        # none: then nothing is left there. One over what a turn makes, as the boxes of an image, may have none in this
        # turn, and what it sets is that of an earlier one.
        known = {facts: self._tests.has_items(node.iter, facts) for facts in ways}
        some = [self._tests.with_items(node.iter, True, each) for each in ways if known[each] is not False]
        none = [self._tests.with_items(node.iter, False, each) for each in ways if not known[each]]
        done, broken = self._turns(node, frozenset(some))
        behind = self.block(node.orelse, frozenset(none) | done)
        return Ends(behind.on | broken, behind.broken, behind.continued)

    def _turns(self, node: ast.For | ast.AsyncFor, ways: Ways) -> tuple[Ways, Ways]:
        """The ways on from the turns of an inner loop, by its end and by `break`."""
        done = broken = seen = NONE
        # A turn may begin with what the one before left. This ends: ways only lose facts, and there are few.
        while ways - seen:
            seen |= ways
            self._at = node.target
            ends = self.block(node.body, self._changed(node.target, self._expression(node.target, ways)))
            ways = ends.on | ends.continued
            done, broken = done | ways, broken | ends.broken
        return done, broken

    def _while(self, node: ast.While, ways: Ways) -> Ends:
        done = broken = seen = NONE
        while ways - seen:
            seen |= ways
            # `while True` goes on behind a `break` alone.
            yes, no = self._test(node.test, ways)
            ends = self.block(node.body, yes)
            ways = ends.on | ends.continued
            done, broken = done | no, broken | ends.broken
        behind = self.block(node.orelse, done)
        return Ends(behind.on | broken, behind.broken, behind.continued)

    def _try(self, node: ast.Try | ast.TryStar, ways: Ways) -> Ends:
        # The exception may come before the first statement has set anything.
        raised = self._anywhere_in(node.body, ways)
        body = self.block(node.body, ways)
        ends = _either(self.block(node.orelse, body.on), Ends(NONE, body.broken, body.continued))
        for handler in node.handlers:
            caught = self._simple(handler.type, raised) if handler.type is not None else raised
            ends = _either(ends, self.block(handler.body, NONE if handler.name == self._name else caught))
        left = [self.block(node.finalbody, each) for each in (*ends, raised)]
        on, broken, continued = (each.on for each in left[:3])
        return Ends(on, broken, continued)

    def _with(self, node: ast.With | ast.AsyncWith, ways: Ways) -> Ends:
        for item in node.items:
            ways = self._simple(item.context_expr, ways)
            if item.optional_vars is not None:
                ways = self._simple(item.optional_vars, ways)
        ends = self.block(node.body, ways)
        calls = [each.context_expr for each in node.items if isinstance(each.context_expr, ast.Call)]
        # `contextlib.suppress` goes on behind the block as an `except` does.
        if any(name_of(call.func) == "suppress" for call in calls):
            ends = _either(ends, Ends(self._anywhere_in(node.body, ways)))
        return ends

    def _anywhere_in(self, nodes: Iterable[ast.AST], ways: Ways) -> Ways:
        """The ways on from an exception in these statements, which may leave them before the variable is set."""
        for node in nodes:
            ways = self._changed(node, ways)
        return ways

    def _match(self, node: ast.Match, ways: Ways) -> Ends:
        ways = self._simple(node.subject, ways)
        ends = Ends()
        for case in node.cases:
            self._at = case.pattern
            own = any(self._name in stored_by(each) for each in ast.walk(case.pattern))
            inside = NONE if own else self._changed(case.pattern, self._expression(case.pattern, ways))
            failed = NONE if _fits_all(case.pattern) else ways
            if case.guard is not None:
                inside, no = self._test(case.guard, inside)
                failed |= ways if own else no
            ends = _either(ends, self.block(case.body, inside))
            ways = failed
        return _either(ends, Ends(ways))

    def _definition(self, node: Function | ast.ClassDef, ways: Ways) -> Ends:
        within = self.block(node.body, ways)  # it may run at once
        if isinstance(node, ast.ClassDef):
            return within
        for each in (*node.decorator_list, node.args):
            ways = self._simple(each, ways)
        return Ends(NONE if self.read else self._changed(node, ways))


def _either(one: Ends, other: Ends) -> Ends:
    return Ends(one.on | other.on, one.broken | other.broken, one.continued | other.continued)


def _few(ways: Ways) -> Ways:
    """The same ways, as one of which only that is known which all know where there are too many."""
    return ways if len(ways) <= _MOST_WAYS else frozenset([frozenset.intersection(*ways)])


def raises(node: ast.AST) -> bool:
    """Whether the statement always raises an exception, or ends the process."""
    match node:
        case ast.Raise():
            return True
        case ast.Assert(test=ast.Constant(value=False)):
            return True
        case ast.Expr(value=ast.Call(func=ast.Name(name))):
            return name in _EXITS
        case ast.Expr(value=ast.Call(func=ast.Attribute(value=ast.Name(module), attr=name))):
            return module in _EXITING and name in _EXITS
    return False


def _fits_all(pattern: ast.pattern) -> bool:
    """Whether a pattern fits whatever it is given."""
    match pattern:
        case ast.MatchAs(pattern=None):
            return True
        case ast.MatchAs(pattern=ast.pattern() as inner):
            return _fits_all(inner)
        case ast.MatchOr(patterns=patterns):
            return any(map(_fits_all, patterns))
    return False
