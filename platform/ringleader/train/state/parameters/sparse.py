"""The parameters that are tables, whose gradients come and travel as rows, and the optimizers that take them."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from inspect import Parameter, signature
from typing import Any

from torch import Tensor, nn
from torch.optim import SGD, Adagrad, Optimizer, SparseAdam

from ringleader.errors import StepMisuse

# Momentum and weight decay move every row in every step.
ROW_WISE: dict[type[Optimizer], tuple[str, ...]] = {
    SGD: ("momentum", "weight_decay"),
    SparseAdam: (),
    Adagrad: ("weight_decay",),
}
"""Optimizers that change no row without a gradient, where these options are zero."""

TAKE_ROWS = (
    "Give embeddings with sparse=True their own optimizer (SGD without momentum and weight decay, SparseAdam, or "
    "Adagrad without weight decay), or use sparse=False."
)


def tables_of(
    models: Sequence[nn.Module], parameters: Mapping[str, nn.Parameter], trained: Sequence[int]
) -> dict[int, str]:
    """The names of trained weights of embeddings with sparse=True, by their numbers.

    As in DistributedDataParallel, modules decide: all members know before a step which parameters have no bucket.

    Args:
        parameters: all of them, by name.
        trained: numbers of those that are trained.

    Raises:
        StepMisuse: an embedding's forward changes its weight (`max_norm`), which nobody would publish.
    """
    sparse = {id(module.weight): module for model in models for module in _sparse_embeddings(model)}
    tables = {}
    for number, (name, parameter) in enumerate(parameters.items()):
        if id(parameter) in sparse and number in trained:
            tables[number] = name
            if sparse[id(parameter)].max_norm is not None:
                raise StepMisuse(
                    f"the embedding of {tables[number]!r} has sparse=True and max_norm: its forward pass changes "
                    f"rows outside of the update.",
                    hint="Leave max_norm out, or use sparse=False.",
                )
    return tables


def make_dense(parameters: Iterable[nn.Parameter]) -> None:
    """Turn sparse gradients of these into dense ones from now on, for architectures that have no way for rows."""
    for parameter in parameters:
        parameter.register_post_accumulate_grad_hook(_densify)  # type: ignore[no-untyped-call]


def _densify(parameter: Tensor) -> None:
    if parameter.grad is not None and parameter.grad.is_sparse:
        parameter.grad = parameter.grad.to_dense()


def refuse_optimizers(
    optimizers: Sequence[tuple[Optimizer, float | None]],
    tables: Mapping[nn.Parameter, str],
    mode: str,
) -> None:
    """Refuse optimizers that cannot step here at all, before they fail with an error in the words of their own code.

    Args:
        tables: the parameters whose gradients are sparse here.
        mode: in the words of the job file.

    Raises:
        StepMisuse: naming the optimizer, and what it would need.
    """
    for optimizer, _ in optimizers:
        kind = type(optimizer).__name__
        parameters = [p for group in optimizer.param_groups for p in group["params"]]
        dense = sum(p.requires_grad and p not in tables for p in parameters)
        if isinstance(optimizer, SparseAdam) and dense:
            raise StepMisuse(
                f"{kind} takes sparse gradients only, and with {mode} {dense} of its parameters get "
                f"dense ones.",
                hint="Use Adam for them; or sync: ring or parameter_server, where the gradients of nn.Embedding and "
                "nn.EmbeddingBag with sparse=True stay sparse.",
            )
        closure = signature(optimizer.step).parameters.get("closure")
        if closure is not None and closure.default is Parameter.empty:
            raise StepMisuse(
                f"{kind}.step() needs a closure that computes gradients, and the session gives it none.",
                hint="Use an optimizer whose step() takes no closure.",
            )


def check_optimizers(
    optimizers: Sequence[tuple[Optimizer, float | None]],
    tables: Mapping[nn.Parameter, str],
    *,
    published: bool,
) -> None:
    """Check that an update changes rows with a gradient only, in tables that servers publish.

    Args:
        published: whether servers own the update.

    Raises:
        StepMisuse: naming the optimizer and the tables.
    """
    for optimizer, _ in optimizers if published else ():
        for group in optimizer.param_groups:
            names = [tables[parameter] for parameter in group["params"] if parameter in tables]
            if names and not _changes_given_rows(optimizer, group):
                raise StepMisuse(
                    f"{type(optimizer).__name__} with these options may change rows without a gradient, but servers "
                    f"publish only rows with one: {', '.join(names)}.",
                    hint=TAKE_ROWS,
                )


def step(optimizer: Optimizer, parameters: Callable[[], Mapping[str, nn.Parameter]]) -> None:
    """Step an optimizer. Raises StepMisuse where it does not take the sparse gradient of one of the parameters, which
    are looked up for that only."""
    try:
        optimizer.step()
    except RuntimeError as error:
        own = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
        names = [name for name, p in parameters().items() if id(p) in own and _has_rows(p)]
        # torch has no error class of its own for this: only the text tells.
        if not names or "sparse" not in str(error):
            raise
        raise StepMisuse(
            f"{type(optimizer).__name__} does not support the sparse gradient of {', '.join(names)}: {error}",
            hint=TAKE_ROWS,
        ) from error


def _sparse_embeddings(model: nn.Module) -> Iterator[nn.Embedding | nn.EmbeddingBag]:
    for module in model.modules():
        if isinstance(module, (nn.Embedding, nn.EmbeddingBag)) and module.sparse:
            yield module


def _has_rows(parameter: nn.Parameter) -> bool:
    return parameter.grad is not None and parameter.grad.is_sparse


def _changes_given_rows(optimizer: Optimizer, group: dict[str, Any]) -> bool:
    """Whether an update of this group is known to change given rows only; a subclass may do anything."""
    known = ROW_WISE.get(type(optimizer))
    return known is not None and not any(group[option] for option in known)
