"""Measuring by turns: which steps of a worker are counted."""

import json

from torch.distributed import TCPStore

from ringleader.bench.processes.gate import END, GO, LOOPBACK, WARM_STEPS, Turnstile


def test_a_worker_of_several_slices_a_step_counts_each_step_once():
    store = TCPStore(LOOPBACK, 0, is_master=True, wait_for_workers=False)
    store.set("ours/turn/1", GO)
    store.set("ours/turn/2", END)
    turnstile = Turnstile(store, "ours", 0, block_steps=4)
    over = []
    for step in range(8, 13):
        for _ in range(2):
            if step == 8:
                turnstile.ready()
            over.append(turnstile.at(step))
    steps = json.loads(store.get("ours/0/done/1"))
    assert len(steps) == 4 - WARM_STEPS
    assert min(steps) > 0
    assert over == [False] * 8 + [True, False]
