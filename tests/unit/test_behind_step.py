"""Which loops are left behind their step, by their text."""

import linecache

import pytest

from ringleader.train.body.behind_step import leaves_behind_step

LEFT = {
    "a break": "s.step(loss)\n        if done: break",
    "a break on the line of the step": "s.step(loss); break",
    "a return": "s.step(loss)\n        if done: return",
    "a step in a function, and a break": "train_one(s, x)\n        if done: break",
}
WALKED = {
    "a break before the step": "if s.global_step > 4: break\n        s.step(loss)",
    "the loss": "s.step(loss)\n        print(s.loss)",
    "the step count": "s.step(loss)\n        print(s.global_step)",
    "a break of a loop inside": "s.step(loss)\n        for n in x: break",
    "a return of a function inside": "s.step(loss)\n        def f(): return 1",
    "another step": "schedule.step()\n        s.step(loss)",
}


@pytest.mark.parametrize("what", [*LEFT, *WALKED])
def test_a_loop_is_left_behind_its_step_by_a_break_or_a_return(what: str) -> None:
    source = f"def train(s):\n    for x in s.batches(rows):\n        {(LEFT | WALKED)[what]}\n"
    file = f"<{what}>.py"
    linecache.cache[file] = len(source), None, source.splitlines(keepends=True), file
    code = compile(source, file, "exec")
    assert leaves_behind_step((code, 2)) == (what in LEFT)
