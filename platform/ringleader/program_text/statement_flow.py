"""The reads of variables in a program's text, and what each flows into, statement by statement.

A read flows into the variables that its statement assigns; a value that is passed to a call that is a statement,
branched on, or put into an object that is no variable's own list or dict, matters. Python's own files are never read.
"""

import ast
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from ringleader.program_text.calls import (
    CALLED,
    HARMLESS,
    LOADS,
    ROW,
    TEXTS,
    all_return_parts,
    are_pairs,
    arguments,
    calls_an_object,
    ends_a_turn,
    is_method,
    is_property,
    may_be_read_by_number,
    own_buffers,
    part_of_result,
    refilled,
    sets_own,
    trains,
)
from ringleader.program_text.program_scope import Definition, Function, Key, ProgramScope, name_of
from ringleader.program_text.variables.containers import look_for_containers
from ringleader.program_text.variables.durations import times_in, without_durations
from ringleader.program_text.variables.governed_names import (
    FunctionEffects,
    governed,
    read_in_their_loops,
)

MATTERS: Key = ("", "")
ACTS: Key = ("", "()")
"""What decides which lines run, or which object is called, and matters so; nothing is known of its attributes."""
LOSS: Key = ("", "step()")
"""What a turn ends with: `session.step(loss)`, or a `backward` that an adapter makes of it."""


@dataclass(frozen=True, slots=True)
class VariableRead:
    """A read of a variable, and the variable that it flows into."""

    key: Key
    line: int
    into: Key


class StatementFlow:
    """The reads of one file, followed statement by statement.

    Attributes:
        loads: every read of a variable.
        sets: the lines in which a variable is assigned or changed.
        imported: the names that imports bind.
        receivers: the variables whose methods are called, each with the method's name, where the program has one.
        callbacks: functions that are called once a step is committed, each as the outermost function or class that
            asks for it, and its name.
    """

    def __init__(self, tree: ast.Module) -> None:
        self.loads: list[VariableRead] = []
        self.sets: dict[Key, list[int]] = defaultdict(list)
        self.scopes: dict[ast.AST, ProgramScope] = {}
        self.functions: dict[str, list[tuple[Function, ProgramScope]]] = defaultdict(list)
        self.imported = _imported(tree)
        self.callbacks: list[tuple[str, str]] = []
        self.receivers: list[tuple[Key, str]] = []
        self._function = ""
        self._class: ast.ClassDef | None = None
        self._hidden: list[str] = []
        self._times, self._alone = set[Key](), set[str]()
        self._within: Function | None = None
        self._effects, self._buffers = FunctionEffects(self.imported), set(own_buffers(tree))
        outside = ProgramScope(imported=self.imported)
        # Every function of the file first: a call may stand above the definition.
        for top in tree.body:
            self.scopes[top] = ProgramScope(top, self.imported) if isinstance(top, Definition) else outside
            for node in ast.walk(top):
                if isinstance(node, Function):
                    self.functions[node.name].append((node, self.scopes[top]))
        # What is put into another name of a container is read by those who have the container.
        self.loads += [VariableRead(*each) for each in look_for_containers(self.scopes, self.functions)]
        for top in tree.body:
            self._scope = self.scopes[top]
            self._times = times_in(top, self._scope)
            self._alone = read_in_their_loops(top)
            self.callbacks += [(self._scope.name, name) for name in _callbacks(top)]
            self._statement(top)

    def _statements(self, statements: Sequence[ast.stmt]) -> None:
        for statement in statements:
            self._statement(statement)

    def _statement(self, node: ast.stmt) -> None:
        for key, line in self._scope.changed_by([node]) if not hasattr(node, "body") else ():
            self.sets[key].append(line)
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                self._nested(node)
            case ast.ClassDef():
                self._class, before = node, self._class
                self._statements(node.body)
                self._class = before
            case ast.Assign(targets=targets, value=value):
                self._assigned(targets, value)
            case ast.AnnAssign(target=target, value=ast.expr() as value):
                self._expression(value, self._into(target))
            case ast.AugAssign(target=target, value=value):
                into = self._into(target)
                self._expression(value, into)
                self.loads += [VariableRead(key, node.lineno, key) for key in into - {MATTERS}]
            case ast.Expr(value=value):
                self._said(value)
            case ast.Return(value=ast.Tuple(elts=parts)):
                for number, part in enumerate(parts):
                    self._expression(part, {("()", self._function), part_of_result(self._function, number)})
            case ast.Return(value=ast.expr() as value):
                # `("()", name)` stands for what functions of that name return.
                self._expression(value, {("()", self._function)})
            case _:
                self._compound(node)

    def _assigned(self, targets: Sequence[ast.expr], value: ast.expr) -> None:
        """Follow an assignment: one of several values at once is that of each of them."""
        match targets, value:
            case [ast.Tuple(elts=parts)], ast.Tuple(elts=values) if are_pairs(parts, values):
                for part, its in zip(parts, values, strict=True):
                    self._expression(its, self._into(part))
            case [ast.Tuple(elts=parts)], ast.Call(func=called) if all_return_parts(
                self._known(called), len(parts)
            ):
                self._call(value, set())
                for number, part in enumerate(parts):
                    self._flow(part_of_result(name_of(called), number), value.lineno, self._into(part))
            case _:
                self._expression(value, {key for target in targets for key in self._into(target)})

    def _compound(self, node: ast.stmt) -> None:
        match node:
            case ast.If(test=test) | ast.While(test=test):
                self._expression(test, self._governed(node))
                self._statements([*node.body, *node.orelse])
            case ast.For(target=target, iter=source) | ast.AsyncFor(target=target, iter=source):
                governed = self._governed(node)
                governed = governed - {MATTERS} | ({ACTS} if MATTERS in governed else set())
                self._expression(source, self._into(target) | governed)
                self._statements([*node.body, *node.orelse])
            case ast.With(items=items) | ast.AsyncWith(items=items):
                for item in items:
                    # To enter it may do anything with the value.
                    into = self._into(item.optional_vars) if item.optional_vars else {MATTERS}
                    self._expression(item.context_expr, into)
                self._statements(node.body)
            case ast.Try() | ast.TryStar():
                self._statements([*node.body, *(s for handler in node.handlers for s in handler.body)])
                self._statements([*node.orelse, *node.finalbody])
            # A pattern decides which lines run, and may call methods of the value.
            case ast.Match(subject=subject, cases=cases):
                captured = {each for case in cases for each, _ in self._scope.changed_by([case.pattern])}
                self._expression(subject, {MATTERS} | captured)
                self._statements([each for case in cases for each in case.body])

    def _nested(self, node: Function) -> None:
        before, self._function = self._function, node.name
        around, self._within = self._within, node
        hidden = node.name.startswith("__") and node.name not in TEXTS
        if is_property(node):
            self.loads.append(VariableRead(("()", node.name), node.lineno, ("", f".{node.name}")))
        elif hidden or (node.decorator_list and not trains(node)):
            # Who calls it is not to be seen.
            rows = node.name != ROW or self._class is None or may_be_read_by_number(self._class)
            self.loads.append(VariableRead(("()", node.name), node.lineno, MATTERS if rows else ACTS))
        self._statements(node.body)
        self._function, self._within = before, around

    def _said(self, value: ast.expr) -> None:
        """Follow an expression statement, whose value is dropped."""
        added = self._scope.added(value) or self._scope.cleared(value)
        own = added if added in self._scope.containers else refilled(value, self._buffers)
        if isinstance(value, ast.Call) and own is not None:
            for argument in (*value.args, *(keyword.value for keyword in value.keywords)):
                self._expression(argument, {own})
            return
        if isinstance(value, ast.Call) and name_of(value.func) == "on_commit":
            # `lambda: losses.append(session.loss)` is a statement of its own, too.
            for each in value.args:
                self._said(each.body) if isinstance(each, ast.Lambda) else self._expression(each, {MATTERS})
            return
        # The program's own functions are followed; what any other does with its arguments is not known.
        known = isinstance(value, ast.Call) and bool(self._known(value.func))
        if known or not (isinstance(value, ast.Call) and name_of(value.func) in HARMLESS):
            said = without_durations(value, self._times, self._scope)
            ends = {LOSS} if ends_a_turn(value) else set()
            if isinstance(said, ast.Call) and not known:
                into = {ACTS} if sets_own(said) else {MATTERS, *ends}
                called = self._scope.holder(said.func)
                self.receivers += [(called, CALLED)] if called is not None else []
                self._call(said, into, {ACTS, *ends})
            else:
                self._expression(said, ends if known else {MATTERS, *ends})

    def _expression(self, node: ast.AST, into: set[Key]) -> None:
        match node:
            case ast.Name(id=name) if name not in self._hidden:
                self._flow(key := self._scope.key(name), node.lineno, into)
                results = _into_of_results(key, self.functions.get(name, ()), self._scope, into)
                self._flow(("()", name), node.lineno, results)
            case ast.Attribute(value=value, attr=attr):
                # The session's attributes are no variables of the program: they are equal on all members.
                if name_of(value) != "session":
                    self._flow(("", f".{attr}"), node.lineno, into)
                    # A method, or a function of another file, that is given to something, which calls it.
                    self._flow(("()", attr), node.lineno, into if attr in self.functions else ())
                # `self` has no value that flows: each attribute has a key of its own.
                if not (isinstance(value, ast.Name) and value.id == "self"):
                    self._expression(value, into)
            case ast.Call():
                self._call(node, into)
            case ast.Yield(value=ast.expr() as value) | ast.YieldFrom(value=value):
                self._expression(value, {("()", self._function)})
            case ast.NamedExpr(target=target, value=value):
                self._expression(value, into | self._into(target))
            case ast.Lambda(args=args, body=body):
                self._hiding([a.arg for a in ast.walk(args) if isinstance(a, ast.arg)], [body], into)
            case ast.ListComp() | ast.SetComp() | ast.GeneratorExp() | ast.DictComp():
                names = [n.id for g in node.generators for n in ast.walk(g.target) if isinstance(n, ast.Name)]
                self._hiding(names, list(ast.iter_child_nodes(node)), into)
            case _:
                for child in ast.iter_child_nodes(node):
                    self._expression(child, into)

    def _call(self, node: ast.Call, into: set[Key], called: set[Key] | None = None) -> None:
        """Follow a call.

        Args:
            into: what its result flows into, and what it is given.
            called: what the object flows into that is called; `into` where it is None.
        """
        called = into if called is None else called
        name = name_of(node.func)
        if isinstance(node.func, ast.Attribute):
            self._expression(node.func.value, into)
        if name.startswith("register_") and name.endswith("hook"):
            into = {*into, LOSS}  # what a hook gives goes into outputs and gradients
        if not (known := self._known(node.func)):
            if isinstance(node.func, ast.expr) and not isinstance(node.func, ast.Name | ast.Attribute):
                self._expression(node.func, into)
            elif isinstance(node.func, ast.Name) or calls_an_object(node.func, self.imported):
                key = self._scope.key(name) if isinstance(node.func, ast.Name) else ("", f".{name}")
                self._flow(key, node.lineno, called)
            for argument in (*node.args, *(keyword.value for keyword in node.keywords)):
                self._expression(argument, into)
            return
        self._flow(("()", name), node.lineno, into)
        receiver = self._scope.holder(node.func.value) if isinstance(node.func, ast.Attribute) else None
        self.receivers += [(receiver, name)] if receiver is not None else []
        if isinstance(node.func, ast.Name) and all(scope is not self._scope for _, scope in known):
            self._flow(self._scope.key(name), node.lineno, into)  # or a variable that has the function's name
        for function, scope in known:
            for argument, parameters in arguments(node, function, scope, every={MATTERS}):
                self._expression(argument, parameters)

    def _known(self, function: ast.expr) -> Sequence[tuple[Function, ProgramScope]]:
        """The functions of the program that it may be."""
        found = self.functions.get(name_of(function), ())
        return found if _is_known(function, found) else ()

    def _hiding(self, names: list[str], nodes: Sequence[ast.AST], into: set[Key]) -> None:
        self._hidden += names
        for node in nodes:
            self._expression(node, into)
        del self._hidden[len(self._hidden) - len(names) :]

    def _flow(self, key: Key, line: int, into: Iterable[Key]) -> None:
        self.loads += [VariableRead(key, line, target) for target in into]

    def _into(self, target: ast.expr) -> set[Key]:
        """The keys that a value flows into that is assigned to this."""
        match target:
            case ast.Name(id=name):
                return {self._scope.key(name)}
            case ast.Tuple(elts=parts) | ast.List(elts=parts):
                return {key for part in parts for key in self._into(part)}
            case ast.Starred(value=value):
                return self._into(value)
        base, own = self._scope.holder(target), self._scope.is_own(target)
        for child in ast.iter_child_nodes(target) if not own else ():
            self._expression(child, {MATTERS})
        return ({base} if base is not None else set()) | (set() if own else {MATTERS})

    def _governed(self, node: ast.stmt) -> set[Key]:
        """The keys that a condition, or a number of turns, affects."""
        changes = lambda call: self._effects.changed_by(self._known(call.func))  # noqa: E731
        keys, acts, ends = governed(node, self._scope, self._alone, changes)
        if acts and not ends and (given := self._effects.decided_in(self._within, self._scope)):
            return keys | given
        return keys | ({MATTERS} if acts else set()) | ({LOSS} if ends else set())


def _is_known(function: ast.expr, found: Sequence[tuple[Function, ProgramScope]]) -> bool:
    """Whether it may be one of the program's functions of its name: no method of the session's, whatever else has its
    name, and no property. What is loaded may go into a model."""
    sessions = isinstance(function, ast.Attribute) and name_of(function.value) == "session"
    if sessions or name_of(function) == LOADS:
        return False
    own = getattr(function, "id", "") == "next"  # Python's own, whatever classes call a method of theirs
    return not all(is_property(each) or (own and is_method(each)) for each, _ in found)


def _into_of_results(
    key: Key, functions: Sequence[tuple[Function, ProgramScope]], scope: ProgramScope, into: set[Key]
) -> set[Key]:
    """What the results of a function flow into that is given to something, which calls it.

    Args:
        key: that of its name there.
        functions: those of that name.
        into: what the function itself flows into.
    """
    own = any(each is scope for _, each in functions)
    others = {MATTERS, *into} if functions and key[0] == "" else set()
    return others | (into if own else set())


def _imported(tree: ast.Module) -> set[str]:
    return {
        (each.asname or each.name).partition(".")[0]
        for node in ast.walk(tree)
        if isinstance(node, ast.Import | ast.ImportFrom)
        for each in node.names
    }


def _callbacks(top: ast.AST) -> Iterator[str]:
    """The names of the functions that it has called once a step is committed."""
    for node in ast.walk(top):
        if isinstance(node, ast.Call) and name_of(node.func) == "on_commit":
            for argument in node.args:
                # `lambda: average.update(net)` has no name.
                inside = argument.body if isinstance(argument, ast.Lambda) else argument
                yield name_of(inside.func if isinstance(inside, ast.Call) else inside)
