"""Obstacles to running a function of Ray Train on a session, by its text: found before a job is packed, and before the
function is imported."""

import ast
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from ringleader.spec.program.framework import Framework

RAY_TRAIN = "ray.train"
ASKS = frozenset(["is_available", "is_initialized", "is_torchelastic_launched"])
"""Questions of `torch.distributed` that have an answer without a process group."""
GROUPS = frozenset(
    ["torch.distributed.init_process_group", "torch.distributed.distributed_c10d.init_process_group"]
)
"""Calls by which a program makes the process group of all its processes."""
LIBRARIES = (
    "deepspeed",
    "horovod",
    "torchft",
    "ray.train.huggingface",
    "ray.train.lightning",
    "ray.util.collective",
)
"""Libraries that bring loops or process groups of their own."""
LOOPS = (ast.For, ast.AsyncFor, ast.While)
FSDP = frozenset(["FullyShardedDataParallel", "fully_shard"])
PARALLEL = frozenset(["DistributedDataParallel", "SyncBatchNorm"])
CLIPPING = frozenset(["clip_grad_value_", "clip_grads_with_norm_"])


@dataclass(frozen=True, slots=True)
class Obstacle:
    """One thing that a session cannot keep, in words, and what to do instead."""

    line: int
    what: str
    cure: str


def framework_of(framework: Framework, module: ast.Module) -> Framework:
    """The framework of a function in this module: with `auto` Ray Train's where the text imports that."""
    if framework != "auto":
        return framework
    imported = _imported(module).values()
    return "ray_train" if any(_is_in(name, RAY_TRAIN) for name in imported) else "native"


@dataclass(frozen=True, slots=True)
class Choice:
    """The framework that `auto` stands for, and the reason in words."""

    framework: Framework
    why: str


def choice_of(module: ast.Module, function: str) -> Choice:
    """The framework for a function of this module: its own session's, Ray Train's on a session where that keeps
    all that it does, and else Ray Train's own engine."""
    framework = framework_of("auto", module)
    if framework == "native":
        return Choice(framework, f"the module imports nothing of {RAY_TRAIN}")
    found = obstacles(module, function)
    if not found:
        return Choice(framework, f"the module imports {RAY_TRAIN}, and a session keeps what {function} does")
    lines = "; ".join(f"line {each.line}: {each.what}" for each in found)
    return Choice("ray_train_hosted", f"a session cannot keep what {function} does: {lines}")


def choice_of_script(module: ast.Module) -> Choice | None:
    """`torchrun` for a script that makes its process group by itself; None for any other."""
    names = _imported(module)
    for node in ast.walk(module):
        if isinstance(node, ast.Call) and _full(node.func, names) in GROUPS:
            return Choice("torchrun", f"line {node.lineno} makes a process group: {ast.unparse(node.func)}")
    return None


def obstacles(module: ast.Module, function: str) -> list[Obstacle]:
    """The obstacles in the function and in what it uses of its module; each once."""
    names = _imported(module)
    found: dict[str, Obstacle] = {}
    for top in _reached(module, function):
        for obstacle in (*_calls(top, names), *_loops(top, names)):
            found.setdefault(obstacle.what, obstacle)
    return sorted(found.values(), key=lambda obstacle: obstacle.line)


def _imported(module: ast.Module) -> dict[str, str]:
    """By name in the module, what it was imported as."""
    found: dict[str, str] = {}
    for node in ast.walk(module):
        if isinstance(node, ast.Import):
            for each in node.names:
                found[each.asname or each.name.partition(".")[0]] = (
                    each.name if each.asname else each.name.partition(".")[0]
                )
                # `import ray.train` binds `ray` alone: under a key that no name has, it shows that the module is used.
                found.setdefault(f"import {each.name}", each.name)
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {each.asname or each.name: f"{node.module}.{each.name}" for each in node.names}
    return found


def _reached(module: ast.Module, function: str) -> list[ast.stmt]:
    """The definition of the function, and of what it uses of the module."""
    tops = {
        node.name: node
        for node in module.body
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
    }
    found: dict[str, ast.stmt] = {}
    new = [function]
    while new:
        name = new.pop()
        if name in tops and name not in found:
            found[name] = tops[name]
            new += [node.id for node in ast.walk(tops[name]) if isinstance(node, ast.Name)]
    return list(found.values())


def _full(node: ast.AST, names: Mapping[str, str]) -> str:
    """The whole name of what an expression names; empty where it names nothing that was imported."""
    if isinstance(node, ast.Name):
        return names.get(node.id, "")
    if isinstance(node, ast.Attribute) and (owner := _full(node.value, names)):
        return f"{owner}.{node.attr}"
    return ""


def _is_in(name: str, package: str) -> bool:
    return name == package or name.startswith(f"{package}.")


def _calls(top: ast.AST, names: Mapping[str, str]) -> Iterator[Obstacle]:
    for node in ast.walk(top):
        if isinstance(node, ast.Name | ast.Attribute) and _full(node, names).endswith("data.IterableDataset"):
            yield Obstacle(
                node.lineno,
                "an IterableDataset, whose rows have no positions",
                "read the rows by a data set with a length, or name the files in data: {sets: …}",
            )
        if isinstance(node, ast.Call):
            yield from _call(node, _full(node.func, names), ast.unparse(node.func))


def _call(node: ast.Call, name: str, text: str) -> Iterator[Obstacle]:
    last = name.rpartition(".")[2]
    strategies = (ast.literal_eval(key.value) for key in node.keywords if _is_strategy(key))
    library = next((library for library in LIBRARIES if _is_in(name, library)), "")
    if library:
        yield Obstacle(
            node.lineno,
            f"{library} brings a loop or a process group of its own",
            "write the loop in plain torch, or use the library's own adapter",
        )
    elif last in FSDP or "fsdp" in strategies:
        yield Obstacle(node.lineno, f"{text}: FSDP splits the model", "leave it out")
    elif _is_in(name, "torch.distributed") and last not in ASKS:
        yield Obstacle(
            node.lineno,
            f"{text}: collectives of its own, and slices of a step do not run at the same time",
            "leave it out: the gradient of a step is that of all its rows, and evaluations go over all rows",
        )
    elif name.startswith("torch.nn.") and PARALLEL & set(name.split(".")):
        yield Obstacle(
            node.lineno, f"{text} needs a process group", "use ray.train.torch.prepare_model alone"
        )
    elif last == "GradScaler":
        yield Obstacle(
            node.lineno, f"{text} reads gradients", "write precision: fp16 in the job file instead"
        )


def _is_strategy(key: ast.keyword) -> bool:
    return key.arg == "parallel_strategy" and isinstance(key.value, ast.Constant)


def _loops(top: ast.AST, names: Mapping[str, str]) -> Iterator[Obstacle]:
    for loop in (node for node in ast.walk(top) if isinstance(node, ast.For)):
        if (backwards := _backwards(loop.body)) == 0:
            continue
        if backwards > 1:
            yield Obstacle(
                loop.lineno,
                "several backwards in one turn of a loop",
                "add the losses up before one backward()",
            )
        yield from _gradients(loop)
        for node in _own(loop.body):
            name = _full(node.func, names) if isinstance(node, ast.Call) else ""
            if name == f"{RAY_TRAIN}.report":
                yield Obstacle(
                    node.lineno,
                    "ray.train.report in a training loop",
                    "report after the loop, once an epoch",
                )
            elif name.rpartition(".")[2] in CLIPPING:
                yield Obstacle(
                    node.lineno,
                    f"{name}: no worker has the whole gradient between backward and step",
                    "use clip_grad_norm_(model.parameters(), 1.0)",
                )


def _gradients(loop: ast.For) -> Iterator[Obstacle]:
    """The first place of a training loop that goes at gradients, also in loops inside of it."""
    nodes = [node for statement in loop.body for node in ast.walk(statement)]
    # Not `torch.autograd.grad(…)`.
    called = [id(node.func) for node in nodes if isinstance(node, ast.Call)]
    read = (node for node in nodes if isinstance(node, ast.Attribute) and node.attr == "grad")
    first = next((node for node in read if id(node) not in called), None)
    if first is not None:
        yield Obstacle(
            first.lineno,
            f"{ast.unparse(first)}: no worker has the whole gradient between backward and step",
            "use clip_grad_norm_(model.parameters(), 1.0), or p.register_hook above the loop",
        )


def _backwards(body: Sequence[ast.stmt]) -> int:
    """The most backwards that one turn makes; those of loops inside of it belong to their turns."""
    count = 0
    for statement in body:
        if isinstance(statement, ast.If):
            count += max(_backwards(statement.body), _backwards(statement.orelse))
        elif isinstance(statement, ast.With | ast.Try):
            count += _backwards(statement.body)
        elif not isinstance(statement, LOOPS):
            calls = (node for node in ast.walk(statement) if isinstance(node, ast.Call))
            count += sum(getattr(call.func, "attr", "") == "backward" for call in calls)
    return count


def _own(body: Sequence[ast.AST]) -> Iterator[ast.expr]:
    """The expressions of a body that are in no loop inside of it."""
    for node in body:
        if isinstance(node, ast.expr):
            yield node
        if not isinstance(node, LOOPS):
            yield from _own(list(ast.iter_child_nodes(node)))
