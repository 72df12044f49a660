"""The last batch of a pass, checked before the first step: whether there is one, and it has enough rows."""

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from ringleader.errors import StepMisuse
from ringleader.train.generation.member import Member
from ringleader.train.job_warnings import JobWarnings
from ringleader.train.rows.order.batch_sizes import batch_at
from ringleader.train.rows.order.cursor import Epoch

ABOUT = "batch_norm"
WHERE_ROWS_COME_FROM = "Check the path, the filter or the split that its rows come from."


def check_last_batch(member: Member, epoch: Epoch, rows: int) -> None:
    """Warn where there are no rows, and where a BatchNorm in train mode would get one row of the pass's last batch at
    once.

    Args:
        epoch: the pass, without the rows that `drop_last` leaves out.
        rows: the number of rows of the dataset.

    Raises:
        StepMisuse: no batch is left.
    """
    if not epoch.steps:
        _without_steps(epoch, rows, member.warnings)
        return
    if not any(_trains_on_batches(model) for model in member.held.models):
        return
    # Without one order of the sums a worker's slices run as one pass: at worst there are as many as `workers.max`.
    whole = member.rules.commits_together and not member.same_bits
    parts, of = (member.spec.workers.max, "workers") if whole else (epoch.shards, "logical shards")
    last = epoch.batch_rows(epoch.steps - 1)
    if last >= 2 * parts:
        return
    _, whole_batch = batch_at(epoch.steps - 1, epoch.batch, epoch.changes)
    short = last < whole_batch
    which = f"the last batch of a pass over {len(epoch.order)} rows" if short else "a batch"
    cure = "Drop the short batch: session.batches(…, drop_last=True)."
    enough = f"Set batch.global_size to {2 * parts} or more."
    member.warnings.add(
        ABOUT,
        f"{which} has {last} row{'s' * (last > 1)} for {parts} {of}: BatchNorm gets single rows, and fails where "
        "a row has one value per channel.",
        cure if short else enough,
    )


def _without_steps(epoch: Epoch, rows: int, warnings: JobWarnings) -> None:
    if rows:
        raise StepMisuse(
            f"session.batches(…, drop_last=True) leaves no batch: the dataset has {rows} rows, and "
            f"a global batch has {epoch.batch}.",
            hint="Leave drop_last out, or lower batch.global_size.",
        )
    warnings.add(
        "data",
        "the data set of a loop has no rows: the loop makes no step, and nothing is trained in it.",
        WHERE_ROWS_COME_FROM,
    )


def _trains_on_batches(model: nn.Module) -> bool:
    return any(isinstance(part, _BatchNorm) and part.training for part in model.modules())
