"""Variables of a program that augmented assignments change, by its text, and whether one ran since the last call.

`x *= 0.7` gives a number another value, but changes an array in place, and with it the weights that it is a view of.
"""

import ast
from collections import defaultdict
from collections.abc import Iterator
from types import CodeType

from ringleader.program_text.program_scope import Key
from ringleader.program_text.statement_order import span
from ringleader.program_text.value_flow import ValueFlow

LOOPS = ast.For | ast.AsyncFor | ast.While


class AugmentedNames:
    """The lines, by variable, that change it by an augmented assignment, or pass it to a function that does."""

    def __init__(self, tree: ast.AST, flows: ValueFlow) -> None:
        self._loops = [span(node) for node in ast.walk(tree) if isinstance(node, LOOPS)]
        self._lines: dict[Key, set[int]] = defaultdict(set)
        for top, scope in flows.scopes.items():
            for node in ast.walk(top):
                if isinstance(node, ast.AugAssign):
                    for key in scope.added_by([node]):
                        self._lines[key].add(node.lineno)
        for key, line in list(self._passed(flows)):
            self._lines[key].add(line)

    def may_have_run(self, key: Key, code: CodeType, before: int, now: int) -> bool:
        """Whether such a line may have run between two session calls.

        Args:
            code: that of the function that has the variable.
            before: the line of that function in which it was at the earlier call; 0 where it had not begun.
            now: the line in which it is at the later one.
        """
        lines = self._lines.get(key)
        if not lines:
            return False
        # The lines of other functions may run at any time: who calls these is not known.
        own = {line for *_, line in code.co_lines() if line}
        if before < now:
            return any(line not in own or before < line <= now for line in lines)
        # It is in another turn of a loop, or was called again.
        begin, end = min(
            ((begin, end) for begin, end in self._loops if begin <= now <= before <= end and begin in own),
            default=(min(own), max(own)),
        )
        return any(line not in own or begin <= line <= now or before <= line <= end for line in lines)

    def _passed(self, flows: ValueFlow) -> Iterator[tuple[Key, int]]:
        """The variables that are arguments of the program's functions, for parameters that these change."""
        parameters = {
            (scope.name, argument.arg)
            for each in flows.functions.values()
            for function, scope in each
            for argument in (*function.args.posonlyargs, *function.args.args, *function.args.kwonlyargs)
        }
        arguments = {
            (scope.key(argument.id), argument.lineno)
            for top, scope in flows.scopes.items()
            for call in ast.walk(top)
            if isinstance(call, ast.Call)
            for argument in (*call.args, *(keyword.value for keyword in call.keywords))
            if isinstance(argument, ast.Name)
        }
        for load in flows.loads:
            changes = load.into in parameters and load.into in self._lines and load.into != load.key
            if changes and (load.key, load.line) in arguments:
                yield load.key, load.line
