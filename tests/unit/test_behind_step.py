"""Which loops go by what their step has made, by their text."""

import linecache

import pytest

from ringleader.train.source.behind_step import goes_by_its_step

GO = {
    "a break": "s.step(loss)\n        if done: break",
    "a break on the line of the step": "s.step(loss); break",
    "the loss": "s.step(loss)\n        print(s.loss)",
    "a return": "s.step(loss)\n        if done: return",
    "a step in a function, and a break": "train_one(s, x)\n        if done: break",
}
STAY = {
    "a break before the step": "if s.global_step > 4: break\n        s.step(loss)",
    "a loss of something else": "s.step(out.loss)\n        print(out.loss)",
    "the step count": "s.step(loss)\n        print(s.global_step)",
    "a break of a loop inside": "s.step(loss)\n        for n in x: break",
    "a return of a function inside": "s.step(loss)\n        def f(): return 1",
    "another step": "schedule.step()\n        s.step(loss)",
}


@pytest.mark.parametrize("what", [*GO, *STAY])
def test_a_body_goes_by_its_step_where_it_leaves_behind_it_or_reads_the_loss(what: str) -> None:
    source = f"def train(s):\n    for x in s.batches(rows):\n        {(GO | STAY)[what]}\n"
    file = f"<{what}>.py"
    linecache.cache[file] = len(source), None, source.splitlines(keepends=True), file
    code = compile(source, file, "exec")
    assert goes_by_its_step((code, 2)) == (what in GO)
