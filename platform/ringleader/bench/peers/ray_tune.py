"""The digits under Ray Tune's ASHA, `python -m ringleader.bench.peers.ray_tune --trials=27 …`, on its own cluster."""

import argparse
import json
import tempfile
import time
from collections.abc import Mapping
from typing import Any

import ray
import torch
from ray import tune
from ray.tune.schedulers import ASHAScheduler
from torch.nn import functional as F
from torch.optim.lr_scheduler import OneCycleLR

from ringleader.bench.processes.children import child_parser, die_with_parent
from ringleader_jobs.digits import Digits, digits_net

BATCH = 64


def loop(config: Mapping[str, Any]) -> None:
    """The recipe of the digits in plain torch; reports at each rung and at the end."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    rows = Digits(train=True)
    net = digits_net()
    optimizer = torch.optim.SGD(net.parameters(), lr=config["lr"], momentum=0.9, weight_decay=1e-4)
    steps_per_epoch = -(-len(rows) // BATCH)
    total = config["epochs"] * steps_per_epoch
    schedule = OneCycleLR(optimizer, config["lr"], total_steps=total)
    step = 0
    for _ in range(config["epochs"]):
        for picked in torch.split(torch.randperm(len(rows)), BATCH):
            optimizer.zero_grad()
            loss = F.cross_entropy(net(rows.image[picked]), rows.label[picked])
            loss.backward()  # type: ignore[no-untyped-call]
            torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)
            optimizer.step()
            schedule.step()
            step += 1
            if step in config["rungs"] or step == total:
                tune.report({"loss": loss.item(), "step": step})


def main() -> None:
    die_with_parent()
    asked = child_parser(texts=["rungs"], numbers=["trials", "parallel", "epochs", "seed"]).parse_args()
    rungs = [int(text) for text in asked.rungs.split(",")]
    # Ray opens its folder to everybody: it lies in one that is nobody else's.
    with tempfile.TemporaryDirectory(prefix="rt", ignore_cleanup_errors=True) as folder:
        ray.init(
            num_cpus=asked.parallel, include_dashboard=False, log_to_driver=False, _temp_dir=f"{folder}/ray"
        )
        try:
            print(json.dumps(searched(asked, rungs)), flush=True)
        finally:
            ray.shutdown()


def searched(asked: argparse.Namespace, rungs: list[int]) -> dict[str, float | None]:
    """The seconds of a search, and the least loss that it found."""
    total = asked.epochs * -(-len(Digits(train=True)) // BATCH)
    scheduler = ASHAScheduler(
        time_attr="step", metric="loss", mode="min", grace_period=rungs[0], reduction_factor=3, max_t=total
    )
    space = {"lr": tune.loguniform(0.001, 1.0), "epochs": asked.epochs, "rungs": rungs}
    how = tune.TuneConfig(num_samples=asked.trials, scheduler=scheduler, max_concurrent_trials=asked.parallel)
    began = time.monotonic()
    found = tune.Tuner(tune.with_resources(loop, {"cpu": 1}), param_space=space, tune_config=how).fit()
    seconds = time.monotonic() - began
    best = found.get_best_result("loss", "min")
    return {"seconds": seconds, "loss": (best.metrics or {}).get("loss")}


if __name__ == "__main__":
    main()
