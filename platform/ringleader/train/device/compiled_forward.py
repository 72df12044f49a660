"""Compiled forwards: a model's forward and backward by torch.compile, with the same kernels whoever compiles them."""

import os
import shutil
import socket
from typing import Any

import torch
from torch import nn

from ringleader.errors import StepMisuse
from ringleader.files import SCRATCH, not_private, own_scratch
from ringleader.train.device.compiled_calls import BESIDE, CompiledCalls
from ringleader.train.state.other_forward import put_forward

CACHE = "TORCHINDUCTOR_CACHE_DIR"
COMPILER, DEFAULT_COMPILER = "CXX", "g++"
SHAPES = 64
"""The most shapes of inputs for which a model is compiled; a worker that sees another one fails."""


def compile_forward(model: nn.Module, device: torch.device) -> CompiledCalls:
    """Have the model's forward, and its backward, compiled when it is first called with inputs of a shape.

    Returns:
        The calls that it will have met.

    Raises:
        StepMisuse: this node has no compiler, or its cache is open to others.
    """
    _check_compiler(device)
    _keep_cache()
    _configure()
    # For each shape by itself: kernels for any shape are made of those that came before, which differ by worker.
    # And some more for those that a joiner compiles for: where its turns differ in another way, they compile again.
    limit = SHAPES + BESIDE
    compiled = torch.compile(type(model).forward, dynamic=False, recompile_limit=limit)  # type: ignore[call-overload]
    calls = CompiledCalls(model, compiled, device)

    def forward(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
        calls.note(args, kwargs)
        return compiled(self, *args, **kwargs)

    put_forward(model, forward)
    return calls


def _check_compiler(device: torch.device) -> None:
    compiler = os.environ.get(COMPILER) or DEFAULT_COMPILER
    if shutil.which(compiler.split()[0]) is None:
        raise StepMisuse(
            f"session.model got compile=True, but node {socket.gethostname()} has no C++ compiler: {compiler!r} is not "
            f"on its PATH.",
            hint=f"Install g++ on all nodes, name another compiler with {COMPILER} in env, or leave compile out.",
        )
    if device.type == "cuda" and not torch.utils._triton.has_triton():
        raise StepMisuse(
            f"session.model got compile=True, but Triton does not work on node {socket.gethostname()}.",
            hint="Install the triton package that belongs to this torch, or leave compile out.",
        )


def _keep_cache() -> None:
    """Keep compiled code in a folder of this account on the node, for all its jobs: code in it is run."""
    if os.environ.get(CACHE):
        return
    own = own_scratch()
    for folder in (own, own / "compiled"):
        if not_private(folder):
            raise StepMisuse(
                f"session.model got compile=True, but {folder} belongs to another account, or others can write to it.",
                hint=f"Remove it, or set {SCRATCH} for Ray's processes on that node.",
            )
    os.environ[CACHE] = str(own / "compiled")


def _configure() -> None:
    import torch._dynamo.config as tracing  # only here: they take their time
    import torch._inductor.config as compiling

    # In this process: helpers of a killed worker would outlive it.
    compiling.compile_threads = 1
    # Else it goes on without compiled code, from a shape on that depends on the worker.
    tracing.fail_on_recompile_limit_hit = True
