"""TRL's trainers on a session: `SFTTrainer(…)` becomes `ElasticSFTTrainer(session, …)`, and `DPOTrainer` alike.

They are transformers' `Trainer` with losses and data of their own. What they measure beside a loss is of the rows that
one worker has: here each slice's goes with its `session.step`, so that means over all rows of the step are recorded.
"""

from typing import Any

from ringleader.adapters.library import needed
from ringleader.adapters.session_loop import refuse
from ringleader.adapters.transformers import ElasticTrainer
from ringleader.train import Session

with needed("transformers", "trl"):
    from transformers import TrainingArguments
with needed("trl", "trl"):
    from trl import DPOTrainer, SFTTrainer

_COUNTED = "num_tokens"
"""What a trainer counts on since it began: of the rows that this worker has had."""
_REFUSED = {
    "activation_offloading": "Leave it out: recompute activations with gradient_checkpointing=True.",
    "sync_ref_model": "Leave it out: a reference model that changes is no committed state.",
    "precompute_ref_log_probs": "Leave it out: it was not tried.",
}


class _TrlTrainer(ElasticTrainer):
    """The part that these trainers share. Behind it in the order of bases comes a trainer of TRL."""

    _metrics: dict[str, dict[str, list[float]]]

    def __init__(self, session: Session, *given: Any, **named: Any) -> None:
        # Before the trainer acts on them.
        for args in (each for each in (*given, *named.values()) if isinstance(each, TrainingArguments)):
            for name, hint in _REFUSED.items():
                if getattr(args, name, False):
                    refuse(f"{type(args).__name__}({name}=True)", hint)
        super().__init__(session, *given, **named)

    def slice_metrics(self) -> dict[str, float]:
        """What the trainer has measured in the slice."""
        measured = self._metrics["train"]
        values = {name: each[-1] for name, each in measured.items() if each and name != _COUNTED}
        measured.clear()
        return values

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """Log as the trainer does, without its count of tokens: it has seen this worker's alone."""
        for measured in self._metrics.values():
            measured.pop(_COUNTED, None)
        super().log(logs, start_time)


class ElasticSFTTrainer(_TrlTrainer, SFTTrainer):  # type: ignore[misc]
    """TRL's `SFTTrainer` on a session; arguments and errors are those of `ElasticTrainer`."""


class ElasticDPOTrainer(_TrlTrainer, DPOTrainer):  # type: ignore[misc]
    """TRL's `DPOTrainer` on a session; arguments and errors are those of `ElasticTrainer`.

    The reference model is what the program gives as `ref_model`, or TRL loads; it stays as it is.
    """
