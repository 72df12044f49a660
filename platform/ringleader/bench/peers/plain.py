"""A training loop in plain torch: one process, no session, no exchange."""

import torch
from torch.distributed import TCPStore  # type: ignore[attr-defined]
from torch.optim import swa_utils

from ringleader.bench.processes.children import child_parser, die_with_parent
from ringleader.bench.processes.gate import LOOPBACK, Turnstile
from ringleader.bench.training.workloads import WORKLOADS
from ringleader.train.memory import keep_freed_memory

WARM_UP_STEPS = 8


def main() -> None:
    asked = child_parser(
        texts=("side", "workload"), numbers=("port", "world", "rank", "block-steps")
    ).parse_args()
    torch.set_num_threads(1)
    # As in our workers: else each step would get its memory from the system anew.
    keep_freed_memory()
    turnstile = Turnstile(
        TCPStore(LOOPBACK, asked.port, is_master=False), asked.side, asked.rank, asked.block_steps
    )
    workload = WORKLOADS[asked.workload]
    net, rows = workload.net(), workload.rows()
    averaged = _average(net, workload.decay) if workload.decay else None
    turns = list(zip(workload.optimizers(net), workload.losses(), strict=True))
    loader = torch.utils.data.DataLoader(rows, batch_size=workload.global_batch, shuffle=True)
    step, over = 0, False
    while not over:
        for batch in loader:
            if step == WARM_UP_STEPS:
                turnstile.ready()
            over = step >= WARM_UP_STEPS and turnstile.at(step)
            if over:
                break
            for optimizer, loss in turns:
                optimizer.zero_grad()
                loss(net, batch).backward()  # type: ignore[no-untyped-call]
                optimizer.step()
            if averaged is not None:
                averaged.update_parameters(net)
            step += 1
    print("{}", flush=True)


def _average(net: torch.nn.Module, decay: float) -> swa_utils.AveragedModel:
    move = swa_utils.get_ema_multi_avg_fn(decay)  # type: ignore[no-untyped-call]
    return swa_utils.AveragedModel(net, multi_avg_fn=move)


if __name__ == "__main__":
    die_with_parent()
    main()
