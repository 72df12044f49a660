"""The program of a hosted Ray Train job, on rank 0: a real `TorchTrainer` whose workers run where the job has places.

Those workers reserve nothing themselves: the job's members, one for each, hold the places on the same nodes and wait.
"""

import os
import signal
import sys
import threading
import traceback
from contextlib import suppress
from types import FrameType
from typing import Any, NoReturn

import ray
from ray.train import FailureConfig, RunConfig, ScalingConfig
from ray.train.torch import TorchTrainer
from ray.train.v2._internal.execution.scaling_policy import FixedScalingPolicy

from ringleader.runtime.hosted.ray_train_worker import FunctionCall, OutputActor, in_worker

NEWS_S = 0.2
NODE_LABEL = "ray.io/node-id"
RUN = "run"
NOTHING = {"CPU": 0, "memory": 1}
"""What a worker of Ray's reserves: a byte of memory, since a reservation must not be empty."""


class GivenPlaces(FixedScalingPolicy):  # type: ignore[misc]
    """As many workers as there are places. Ray's own policies ask the autoscaler for nodes, where one request replaces
    another one: it is the control plane that asks for all jobs together."""

    def after_controller_start(self, train_run_context: object) -> None:
        pass

    def _maybe_send_resource_request(self) -> None:
        pass


class HostedTrainer(TorchTrainer):  # type: ignore[misc]
    """Ray's trainer with the places of the job."""

    def _initialize_and_run_controller(self, **given: Any) -> Any:
        return super()._initialize_and_run_controller(
            **{**given, "scaling_policy": GivenPlaces(self.scaling_config)}
        )


def main(call: FunctionCall, nodes: list[str], given: list[str]) -> NoReturn:
    """Train with a worker on each of the nodes; exits with 1 where that fails.

    Args:
        given: the variables of this process that the workers get.
    """
    signal.signal(signal.SIGTERM, _stopped)
    # Ray would log what is printed beside printing it, and each line would come twice.
    os.environ["RAY_TRAIN_ENABLE_PRINT_PATCH"] = "0"
    # The package goes to all nodes by Ray's own way: each member's copy is in a folder of its own.
    ray.init(address=os.environ["RAY_ADDRESS"], runtime_env={"working_dir": "."}, log_to_driver=False)
    try:
        sys.exit(_fit(call, nodes, {name: os.environ[name] for name in given}))
    finally:
        ray.shutdown()  # which ends the workers


def _fit(call: FunctionCall, nodes: list[str], variables: dict[str, str]) -> int:
    output = ray.remote(OutputActor).options(num_cpus=0).remote()
    ray.get(output.hand_over.remote(variables))
    over = threading.Event()
    printing = threading.Thread(target=_print, args=(output, over), daemon=True)
    printing.start()
    trainer = HostedTrainer(
        in_worker(call, output),
        scaling_config=ScalingConfig(
            num_workers=len(nodes),
            resources_per_worker=NOTHING,
            label_selector=[{NODE_LABEL: node} for node in nodes],
        ),
        # The same name in all generations: Ray goes on from the newest checkpoint that it finds there. How often it
        # starts anew is the supervisor's decision.
        run_config=RunConfig(
            name=RUN,
            storage_path=os.environ["RINGLEADER_CHECKPOINT_DIR"],
            failure_config=FailureConfig(max_failures=0),
        ),
    )
    try:
        trainer.fit()
    except Exception:
        traceback.print_exc()
        return 1
    finally:
        over.set()
        printing.join()
    return 0


def _stopped(number: int, _: FrameType | None) -> NoReturn:
    sys.exit(128 + number)


def _print(output: Any, over: threading.Event) -> None:
    """Print what the workers print, as they do."""
    last = False
    while not last:
        # Once more behind the end: the last lines are still with the actor.
        last = over.wait(NEWS_S)
        with suppress(ray.exceptions.RayError):
            for level, text in ray.get(output.take.remote()):
                print(text, file=sys.stderr if level == "error" else sys.stdout, flush=True)
