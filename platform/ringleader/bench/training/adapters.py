"""The cost of an adapter: a step of a library's loop on a session beside the same step of a training function, the
library's own loop beside one in plain torch, and the loss of a worker of a function of Ray Train on our engine and on
Ray's.

Steps in seconds of the processor: all of a step is computed in one process, and neighbours do not count.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import redirect_stdout
from dataclasses import dataclass
from functools import partial
from io import StringIO
from itertools import pairwise
from tempfile import gettempdir
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim.lr_scheduler import LambdaLR
from torch.utils.data import DataLoader, Dataset

from ringleader.bench.elasticity import recovery
from ringleader.bench.line import Figure, Target
from ringleader.bench.peers import libraries
from ringleader.bench.registry import Wish
from ringleader.bench.training.workloads import InMemoryRows, sgd
from ringleader.train import Session, local_session
from ringleader.train.memory import keep_freed_memory

BATCH, SHARDS, STEPS, WARM_STEPS = 64, 2, 16, 4
WIDTH, VOCABULARY = 1024, 97
Program = Callable[[Session], None]


@dataclass(frozen=True, slots=True)
class AdapterCase:
    """One library: its program, the same as a training function, and the library's own loop without a session."""

    name: str
    adapted: Program
    native: Program
    settings: str
    alone: libraries.OwnLoop | None = None


def network() -> nn.Module:
    """3.1 million parameters, (n, 1024) → (n, 1024)."""
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH)
    )


def rows() -> InMemoryRows:
    x = torch.randn(BATCH * STEPS, WIDTH, generator=torch.Generator().manual_seed(1))
    return InMemoryRows(x, x.roll(1, dims=1))


def loss_of(net: nn.Module, batch: Any) -> Tensor:
    return F.mse_loss(net(batch["x"]), batch["y"])


def trained(session: Session) -> None:
    """The training function that the loops of Accelerate, Lightning and Fabric are compared with."""
    net = session.model(network())
    session.optimizer(sgd(net.parameters()), clip_norm=1.0)
    for batch in session.batches(rows()):
        session.step(loss_of(net, batch))


def accelerated(session: Session) -> None:
    from ringleader.adapters.accelerate import ElasticAccelerator

    accelerator = ElasticAccelerator(session, clip_norm=1.0)
    net = network()
    loader = DataLoader(rows(), BATCH // SHARDS, shuffle=True)
    net, optimizer, loader = accelerator.prepare(net, sgd(net.parameters()), loader)
    for batch in loader:
        with accelerator.accumulate(net):
            accelerator.backward(loss_of(net, batch))
            if accelerator.sync_gradients:
                accelerator.clip_grad_norm_(net.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()


def by_lightning(session: Session) -> None:
    from lightning.pytorch import LightningModule, Trainer

    from ringleader.adapters.lightning import RingleaderStrategy

    class Module(LightningModule):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.net = network()

        def training_step(self, batch: Any, batch_idx: int) -> Tensor:
            return loss_of(self.net, batch)

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return sgd(self.net.parameters())

    trainer = Trainer(
        strategy=RingleaderStrategy(session),
        max_epochs=1,
        gradient_clip_val=1.0,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(Module(), DataLoader(rows(), BATCH // SHARDS, shuffle=True))


def by_fabric(session: Session) -> None:
    from lightning.fabric import Fabric

    from ringleader.adapters.fabric import RingleaderStrategy

    fabric = Fabric(strategy=RingleaderStrategy(session, clip_norm=1.0))
    fabric.launch()
    net = network()
    net, optimizer = fabric.setup(net, sgd(net.parameters()))
    loader = fabric.setup_dataloaders(DataLoader(rows(), BATCH // SHARDS, shuffle=True))
    for batch in loader:
        fabric.backward(loss_of(net, batch))
        fabric.clip_gradients(net, optimizer, max_norm=1.0)
        optimizer.step()
        optimizer.zero_grad()


class Words(Dataset[dict[str, Tensor]]):
    """Rows of 32 words."""

    def __init__(self) -> None:
        draw = torch.Generator().manual_seed(1)
        self.words = torch.randint(0, VOCABULARY, (BATCH * STEPS, 32), generator=draw)

    def __len__(self) -> int:
        return len(self.words)

    def __getitem__(self, row: int) -> dict[str, Tensor]:
        return {"input_ids": self.words[row], "labels": self.words[row]}


def llama() -> Any:
    """1.1 million parameters."""
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    sizes = {"hidden_size": 128, "intermediate_size": 512, "num_hidden_layers": 4, "num_attention_heads": 4}
    return LlamaForCausalLM(LlamaConfig(vocab_size=VOCABULARY, **sizes))


def by_trainer(session: Session) -> None:
    from transformers import TrainingArguments

    from ringleader.adapters.transformers import ElasticTrainer

    args = TrainingArguments(
        output_dir=gettempdir(),
        per_device_train_batch_size=BATCH // SHARDS,
        num_train_epochs=1,
        optim="sgd",
        lr_scheduler_type="linear",
        save_strategy="no",
        logging_strategy="no",
        disable_tqdm=True,
        use_cpu=True,
    )
    with redirect_stdout(StringIO()):  # what the trainer tells at its end
        ElasticTrainer(session, model=llama(), args=args, train_dataset=Words()).train()


def by_hand(session: Session) -> None:
    """The training function that the trainer is compared with."""
    from transformers import default_data_collator

    model = session.model(llama())
    model.config.use_cache = False  # as the trainer has it: the forward is another one with a cache
    optimizer = torch.optim.SGD(model.parameters(), lr=5e-5)
    session.optimizer(optimizer, clip_norm=1.0)
    session.scheduler(LambdaLR(optimizer, lambda step: (STEPS - step) / STEPS))
    for batch in session.batches(Words(), collate=default_data_collator):
        model.train()
        items = batch["labels"][..., 1:].ne(-100).sum()
        session.step(model(**batch, num_items_in_batch=items).loss, weight=float(items))


def rays_function(config: dict[str, Any]) -> None:
    import ray.train.torch

    net = ray.train.torch.prepare_model(network())
    optimizer = sgd(net.parameters())
    loader = ray.train.torch.prepare_data_loader(DataLoader(rows(), BATCH, shuffle=True))
    for batch in loader:
        loss = loss_of(net, batch)
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()


def adopted(session: Session) -> None:
    from ringleader.adapters.ray_train import training_function

    training_function(f"{__name__}:{rays_function.__name__}")(session)


def trained_unclipped(session: Session) -> None:
    """The training function that the one of Ray Train is compared with."""
    net = session.model(network())
    session.optimizer(sgd(net.parameters()))
    for batch in session.batches(rows()):
        session.step(loss_of(net, batch))


MLP = "MLP of 3.1M parameters, SGD with momentum, a clipped norm"
_CASES = (
    AdapterCase("accelerate", accelerated, trained, MLP, libraries.in_accelerate),
    AdapterCase("lightning", by_lightning, trained, MLP, libraries.in_lightning),
    AdapterCase("fabric", by_fabric, trained, MLP, libraries.in_fabric),
    AdapterCase(
        "transformers",
        by_trainer,
        by_hand,
        "Llama of 1.1M parameters, 64 rows of 32 words, SGD, a clipped norm",
    ),
    AdapterCase("ray_train", adopted, trained_unclipped, "MLP of 3.1M parameters, SGD with momentum"),
)
ALONE = "-alone"
"""The ending of the case in which a library runs its own loop."""
CASES = (
    *(case.name for case in _CASES),
    *(f"{case.name}{ALONE}" for case in _CASES if case.alone is not None),
    recovery.ADOPTED,
)


def run(wish: Wish) -> Iterator[Figure]:
    """Seconds of the processor a step, in one process of one thread; the two programs take turns."""
    keep_freed_memory()  # as in our workers: page faults of either side would be measured, and not its lines
    rounds = 12 if wish.full else 5
    for case in _CASES:
        if wish.wants(case.name):
            yield _beside_native(case, rounds)
        if case.alone is not None and wish.wants(f"{case.name}{ALONE}"):
            yield _beside_torch(case.name, case.alone, rounds)
    if wish.wants(recovery.ADOPTED):
        yield recovery.adopted_kills(wish)


def _beside_native(case: AdapterCase, rounds: int) -> Figure:
    ours, native, missing = _by_turns(partial(_steps_s, case.adapted), partial(_steps_s, case.native), rounds)
    return Figure(
        case=case.name,
        unit="s",
        better="lower",
        ours=ours,
        peers=native,
        peer_name="a training function",
        # As a ratio of the peer's seconds: a step of the adapter takes at most 1.02 times the native one.
        target=Target("ratio", ">=", 0.98),
        settings=f"{case.name}: {case.settings}; one process, one thread, L = {SHARDS}; processor seconds{missing}",
    )


def _beside_torch(name: str, alone: libraries.OwnLoop, rounds: int) -> Figure:
    """What the library's own lines cost: a part of each step of its adapter, whoever writes that."""
    library, plain, missing = _by_turns(
        partial(_own_steps_s, alone), partial(_own_steps_s, libraries.in_torch), rounds
    )
    return Figure(
        case=f"{name}{ALONE}",
        unit="s",
        better="lower",
        ours=library,
        peers=plain,
        peer_name="plain torch",
        settings=f"{name}{ALONE}: {name}'s own loop, no session in either; {MLP}, {BATCH} rows at once; one process, "
        f"one thread; processor seconds{missing}",
    )


def _by_turns(
    one: Callable[[], list[float]], other: Callable[[], list[float]], rounds: int
) -> tuple[list[float], list[float], str]:
    """What both measure, and why nothing where a library is missing. Neither always follows the other."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    ours: list[float] = []
    peers: list[float] = []
    try:
        for number in range(rounds):
            sides = [(one, ours), (other, peers)]
            for measure, values in sides if number % 2 else reversed(sides):
                values.extend(measure())
    except ImportError as error:
        return [], peers, f"; not measured: {error}"
    finally:
        torch.set_num_threads(threads)
    return ours, peers, ""


def _own_steps_s(loop: libraries.OwnLoop) -> list[float]:
    """Seconds of the processor for each step of a loop without a session but the first ones."""
    ends: list[float] = []
    loop(network(), rows(), loss_of, BATCH, lambda: ends.append(time.process_time()))
    return [after - before for before, after in pairwise(ends[WARM_STEPS:])]


def _steps_s(program: Program) -> list[float]:
    """Seconds of the processor for each step but the first ones."""
    spec = {
        "name": "adapters",
        "entrypoint": "adapters:train",
        "batch": {"global_size": BATCH, "logical_shards": SHARDS},
        "workers": {"max": SHARDS},
        "debug": {"check": False},
    }
    ends: list[float] = []
    with local_session(spec) as session:
        session.step = _timed(session, ends)  # type: ignore[method-assign]
        program(session)
    return [after - before for before, after in pairwise(ends[WARM_STEPS:])]


def _timed(session: Session, ends: list[float]) -> Callable[..., None]:
    """`session.step`, which notes when steps end."""
    step = session.step

    def timed(*given: Any, **named: Any) -> None:
        before = session.global_step
        step(*given, **named)
        if session.global_step != before:
            ends.append(time.process_time())

    return timed
