"""What a `TrainingArguments` may ask for on a session, and which callbacks cannot be called there."""

from collections.abc import Iterable
from typing import Any

from ringleader.adapters.library import needed
from ringleader.adapters.session_loop import check_batch_size, refuse
from ringleader.errors import StepMisuse
from ringleader.train import Session

with needed("transformers", "hf"):
    from transformers import TrainerCallback
    from transformers.integrations import INTEGRATION_TO_CALLBACK
    from transformers.trainer_utils import IntervalStrategy
    from transformers.training_args import ParallelMode

PRECISION = "Write {name}=False, and precision: {name} in the job file."
TRL = "ringleader.adapters.trl"
_BEHIND_BACKWARD = ("on_pre_optimizer_step", "on_optimizer_step", "on_substep_end")
_INSIDE_BACKWARD = frozenset(["lomo", "adalomo"])


def check_kind(trainer: type) -> None:
    """Check that a class of trainers has bases whose turns are known. Raises StepMisuse: TRL has others, too."""
    bases = [base for base in trainer.__mro__ if base.__module__.partition(".")[0] == "trl"]
    if bases and not any(base.__module__ == TRL for base in trainer.__mro__):
        refuse(
            f"{trainer.__name__}, a trainer with TRL's {bases[0].__name__},",
            f"{TRL} has ElasticSFTTrainer and ElasticDPOTrainer; trainers of TRL's that generate while they train, and "
            f"others, were not tried.",
        )


def check_arguments(session: Session, args: Any) -> None:
    """Check the arguments of a trainer. Raises StepMisuse: naming one that cannot be kept, and what to write."""
    check_batch_size(session, args.per_device_train_batch_size, args.gradient_accumulation_steps)
    asked = {
        "deepspeed": (bool(args.deepspeed), "A session splits no model: leave it out."),
        "fsdp": (bool(args.fsdp), "A session splits no model: leave it out."),
        "bf16": (args.bf16, PRECISION.format(name="bf16")),
        "fp16": (args.fp16, PRECISION.format(name="fp16")),
        "torch_compile": (args.torch_compile, "Leave it out: it was not tried."),
        "auto_find_batch_size": (
            args.auto_find_batch_size,
            "A step has the job's rows: raise logical_shards instead.",
        ),
        "push_to_hub": (args.push_to_hub, "Call trainer.push_to_hub() where the weights are exported to."),
        "include_num_input_tokens_seen": (
            args.include_num_input_tokens_seen not in (False, "no"),
            "A worker sees the tokens of its own slices only: leave it out.",
        ),
        "optim": (
            str(getattr(args.optim, "value", args.optim)) in _INSIDE_BACKWARD,
            "It updates inside backward: use another one.",
        ),
        "report_to": (
            bool(args.report_to),
            "Leave it out: logs are in ringleader metrics, on the page and in MLflow.",
        ),
        "eval_strategy": (
            args.eval_strategy == IntervalStrategy.STEPS,
            "Evaluate at the end of epochs, eval_strategy='epoch': inside of one, workers are not between two steps "
            "at the same time.",
        ),
    }
    for name, (is_asked, hint) in asked.items():
        if is_asked:
            refuse(f"TrainingArguments({name}={getattr(args, name)!r})", hint)
    _check_devices(session, args)


def check_callbacks(callbacks: Iterable[Any]) -> None:
    """Check that no callback stands between backward and update, or reports elsewhere. Raises StepMisuse."""
    reporting = tuple(INTEGRATION_TO_CALLBACK.values())
    for callback in callbacks:
        kind = type(callback)
        for name in _BEHIND_BACKWARD:
            if getattr(kind, name) is not getattr(TrainerCallback, name):
                refuse(
                    f"{kind.__name__}.{name}",
                    "No worker has the whole gradient there. Use on_step_end, which is called for each committed step.",
                )
        if isinstance(callback, reporting):
            refuse(kind.__name__, "Leave it out: logs are in ringleader metrics, on the page and in MLflow.")


def _check_devices(session: Session, args: Any) -> None:
    if args.parallel_mode == ParallelMode.DISTRIBUTED or args.world_size > 1:
        refuse(
            "a process group of torch.distributed",
            "Start the function as a job, without torchrun or accelerate launch.",
        )
    if args.n_gpu > 1:
        refuse(
            f"a model on {args.n_gpu} GPUs of one process",
            "A worker has one: workers: {gpus: 1} in the job file.",
        )
    if args.device.type != session.device.type:
        raise StepMisuse(
            f"the trainer computes on {args.device}, and the session on {session.device}.",
            hint="Write TrainingArguments(use_cpu=True), or workers: {gpus: 1} in the job file.",
        )
