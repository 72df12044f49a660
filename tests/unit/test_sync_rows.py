"""Embeddings with sparse gradients: only touched rows travel, and the bits are those of one process."""

from collections.abc import Callable, Iterable
from itertools import product
from typing import Any

import pytest
import torch
from exchange_members import ROWS, Member, in_pairs, on_members, plan_of, slice_rows
from torch import Tensor, nn

from ringleader.comm.rows import SparseRows, SparseTables, added, as_gradient, rows_of
from ringleader.comm.transports.inprocess import Hub
from ringleader.errors import StepMisuse
from ringleader.exchange.registry import share_out
from ringleader.exchange.sparse_messages import message_bytes
from ringleader.train.state.norms import clip, scale_by, total_norm

SHARDS, STEPS = 8, 4
USERS, ITEMS, WIDTH = 37, 90, 5
TABLES = {0: "users.weight", 1: "items.weight"}
ABSENT = (frozenset(), frozenset({0, 1, 4}), frozenset(range(1, 8)))


class Ratings(nn.Module):
    """Two tables, one of them reached by some slices only, both with rows that come several times in a slice."""

    def __init__(self, *, sparse: bool = True) -> None:
        super().__init__()
        self.users = nn.Embedding(USERS, WIDTH, sparse=sparse)
        self.items = nn.EmbeddingBag(ITEMS, WIDTH, mode="sum", sparse=sparse)
        self.out = nn.Linear(WIDTH, 3)

    def forward(self, x: Tensor) -> Tensor:
        known = x[:, 0] > 0.5
        hidden = self.items((x[:, 1:5].abs() * 40).long() % ITEMS)
        if known.any():
            hidden = hidden.index_add(0, known.nonzero()[:, 0], self.users((x[known, 5].abs() * 5).long()))
        return self.out(hidden)


def ratings(*, sparse: bool = True) -> nn.Module:
    torch.manual_seed(5)
    return Ratings(sparse=sparse)


class Two:
    """Optimizers for the tables and for the rest."""

    def __init__(self, tables: Any, rest: Any) -> None:
        self.optimizers = (tables, rest)

    def step(self) -> None:
        for optimizer in self.optimizers:
            optimizer.step()


def with_rest(make: Callable[[list[nn.Parameter]], Any]) -> Callable[[Iterable[nn.Parameter]], Any]:
    def both(parameters: Iterable[nn.Parameter]) -> Two:
        users, items, *rest = parameters
        return Two(make([users, items]), torch.optim.SGD(rest, lr=0.05, momentum=0.9))

    return both


sgd = with_rest(lambda tables: torch.optim.SGD(tables, lr=0.1))
sparse_adam = with_rest(lambda tables: torch.optim.SparseAdam(tables, lr=0.02))
adagrad = with_rest(lambda tables: torch.optim.Adagrad(tables, lr=0.05))


def trained(workers: int, servers: int, optimizer: Any = sgd, **changes: Any) -> list:
    absent = changes.pop("absent", frozenset())
    act = changes.pop("act", lambda member: member.train(STEPS, absent))
    settings = {"make": ratings, "tables": TABLES} | changes
    return on_members(plan_of(workers, SHARDS, servers), act, optimizer=optimizer, **settings)


def same(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    return all(torch.equal(one[name], other[name]) for name in one)


@pytest.mark.parametrize(
    ("optimizer", "clip_norm", "shared"), in_pairs((sgd, sparse_adam, adagrad), (None, 0.05))
)
def test_servers_and_ring_have_the_bits_of_one_process(optimizer, clip_norm, shared):
    alone = [trained(1, 0, optimizer, clip_norm=clip_norm, absent=absent)[0] for absent in ABSENT]
    for servers, workers in product((0, 1, 2, 3), (1, 2, 3, 4)):
        k = (servers + workers) % len(ABSENT)
        nets = trained(workers, servers, optimizer, clip_norm=clip_norm, absent=ABSENT[k], shared=shared)
        assert len(nets) == workers + servers
        assert all(same(alone[k], net) for net in nets), (servers, workers, ABSENT[k])


@pytest.mark.parametrize("architecture", ["parameter_server", "parameter_server/ring"])
def test_rows_have_the_bits_of_one_process_whatever_the_dense_buckets_go_through(architecture):
    (alone,) = trained(1, 0)
    hub, nodes = Hub(5), ((0, 1, 3), (2, 4))
    members = [hub.transport(rank, nodes) for rank in range(hub.size)]
    for net in trained(3, 2, members=members, architecture=architecture):
        assert same(alone, net)


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("slots", [(0, 1), (1,), (0, 1, 2), (2, 0)])
def test_servers_with_backups_have_the_bits_of_one_process(slots, shared):
    (alone,) = trained(1, 0, adagrad, clip_norm=0.05)
    parts = max(2, max(slots) + 1)
    plan = plan_of(2, SHARDS, len(slots), backups=1, slots=slots, parts=parts)
    nets = on_members(
        plan,
        lambda member: member.train(STEPS),
        optimizer=adagrad,
        clip_norm=0.05,
        make=ratings,
        tables=TABLES,
        shared=shared,
    )
    assert all(same(alone, net) for net in nets)


def test_sums_of_rows_are_those_of_dense_gradients():
    """Without clipping and with plain SGD the weights are those of the same model with sparse=False."""
    (dense,) = trained(1, 0, make=lambda: ratings(sparse=False), tables={})
    for net in trained(3, 2):
        assert same(dense, net)


@pytest.mark.parametrize(("workers", "servers"), [(3, 0), (3, 1), (2, 2)])
def test_where_a_worker_runs_its_slices_as_one_all_members_end_with_the_same_tables(workers, servers):
    def merged(member: Member) -> dict[str, Tensor]:
        for step in range(STEPS):
            member.exchange.begin_step(frozenset(range(workers)))
            if member.rank < workers:
                slices = [slice_rows(step, k, SHARDS) for k in member.plan.shards_of(member.rank)]
                x, y = (torch.cat(parts) for parts in zip(*slices, strict=True))
                member.exchange.begin_slice(member.rank)
                ((member.net(x) - y) ** 2).sum().div(ROWS).backward()
                member.exchange.end_slice()
            member.exchange.finish(torch.zeros(workers + servers))
            if member.exchange.updates:
                member.optimizer.step()
            member.exchange.publish()
        return {name: p.detach().clone() for name, p in member.net.named_parameters()}

    (alone,) = trained(1, 0)
    first, *others = trained(workers, servers, act=merged, same_bits=False)
    assert all(same(first, net) for net in others)
    # Four float32 updates of values around one, summed in another order.
    assert all(torch.allclose(first[name], alone[name], atol=1e-5) for name in alone)


def test_a_table_that_no_slice_of_a_worker_reached_is_summed():
    """Some slices reach no user, and some worker none in a whole step."""

    def touched(member: Member) -> list[int]:
        counts = []
        for step in range(STEPS):
            member.gradient(step, frozenset(range(SHARDS)))
            counts.append(sum(rows.count for rows in member.exchange.buckets.tables.partials(0)))
            member.exchange.finish(torch.zeros(len(member.plan.members)))
            member.exchange.publish()
        return counts

    *workers, _ = trained(4, 1, act=touched)
    assert any(0 in counts for counts in workers)
    assert all(sum(counts) > 0 for counts in workers)


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_a_row_that_occurs_more_than_once_is_added_in_the_order_of_its_occurrence(device):
    if device == "cuda" and not torch.cuda.is_available():
        pytest.skip("there is no CUDA device")
    torch.manual_seed(0)
    indices, values = torch.randint(3, 50, (5000,)), torch.randn(5000, 3)
    expected = torch.zeros(60, 3)
    for index, value in zip(indices.tolist(), values, strict=True):
        expected[index] += value
    gradient = torch.sparse_coo_tensor(indices[None], values, (60, 3), check_invariants=False)
    rows = rows_of(gradient.to(device))
    assert rows.indices.tolist() == list(range(3, 50))
    assert torch.equal(rows.values.cpu(), expected[3:50])
    assert as_gradient(rows, expected.to(device)).is_coalesced()


def test_only_rows_of_both_sums_are_added():
    one = SparseRows(torch.tensor([1, 4]), torch.tensor([[1.0, 2.0], [3.0, 4.0]]))
    other = SparseRows(torch.tensor([0, 4]), torch.tensor([[5.0, 6.0], [7.0, 8.0]]))
    total = added(one, other)
    assert total.indices.tolist() == [0, 1, 4]
    assert total.values.tolist() == [[5.0, 6.0], [1.0, 2.0], [10.0, 12.0]]


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("servers", [1, 2])
def test_the_bytes_on_the_wire_are_those_of_the_touched_rows(servers, shared):
    """A worker sends its partial sums to the owner, the owner its changed rows to everybody else."""
    workers, rows, width = 3, 20_000, 16

    def wide() -> nn.Module:
        torch.manual_seed(5)
        net = Ratings()
        net.items = nn.EmbeddingBag(rows, width, mode="sum", sparse=True)
        net.users = nn.Embedding(USERS, width, sparse=True)
        net.out = nn.Linear(width, 3)
        return net

    def bytes_and_formula(member: Member) -> tuple[int, int, int]:
        net, tables = member.net, member.exchange.buckets.tables
        weights = [net.users.weight, net.items.weight]
        owners = share_out(list(net.parameters()), servers)
        member.gradient(0, frozenset(range(SHARDS)))
        partials = [tables.partials(number) for number in TABLES]
        expected = 0
        for server in range(servers):
            owned = [n for n in TABLES if owners[n] == server]
            sent = [(rows.count, weights[n]) for n in owned for rows in partials[n]]
            if sent and member.rank < workers:
                expected += message_bytes(*zip(*sent, strict=True))
        member.exchange.finish(torch.zeros(workers + servers))
        mine = [n for n in TABLES if member.rank - workers == owners[n]]
        member.optimizer.step()
        if mine:
            changed = [len(tables.changed[n]) for n in mine]
            expected += (workers + servers - 1) * message_bytes(changed, [weights[n] for n in mine])
        member.exchange.publish()
        member.exchange.meet(torch.zeros(workers + servers))  # nobody leaves while another still reads
        return tables.wire_bytes, expected, sum(table.nbytes for table in weights)

    for sent, expected, dense in trained(workers, servers, make=wide, act=bytes_and_formula, shared=shared):
        assert sent == expected
        assert sent < dense / 20


def test_a_message_has_a_count_four_bytes_an_index_and_the_values_of_each_partial_sum():
    table = torch.empty(1000, 6)
    assert message_bytes([], []) == 0
    assert message_bytes([0, 0], [table, table]) == 2 * 8
    assert message_bytes([10, 3], [table, table]) == 2 * 8 + (10 * 4 + 10 * 24) + (16 + 3 * 24)


@pytest.mark.parametrize("shared", [False, True])
def test_a_large_table_has_no_dense_copy(shared):
    """A million rows of 64: the members hold the rows that were touched, and buckets of the rest."""
    rows, width = 1_000_000, 64

    def huge() -> nn.Module:
        net = ratings()
        net.items = nn.EmbeddingBag.from_pretrained(
            torch.zeros(rows, width), freeze=False, mode="sum", sparse=True
        )
        net.users = nn.Embedding(USERS, width, sparse=True)
        net.out = nn.Linear(width, 3)
        return net

    def held(member: Member) -> tuple[int, int]:
        buckets = member.exchange.buckets
        member.gradient(0, frozenset(range(SHARDS)))
        partials = buckets.tables.nbytes
        member.exchange.finish(torch.zeros(2))
        if member.exchange.updates:
            member.optimizer.step()
        member.exchange.publish()
        member.exchange.meet(torch.zeros(2))
        flat = [t for b in buckets.buckets for t in (*b.rows, *b.homes)]
        flat += [weights.memory for weights in buckets.weights.buckets.values()]
        return partials, sum(tensor.nbytes for tensor in flat)

    (worker, flat), (server, flat_of_server) = trained(1, 1, make=huge, act=held, shared=shared)
    assert 0 < worker <= ROWS * 5 * (8 + 4 * width)  # four items and a user a row, before any is the same
    assert server == 0
    assert max(flat, flat_of_server) < 64 << 10


def test_a_server_publishes_at_once_what_it_changed_in_the_generation_before():
    """Nobody received the update; the repeated step touches other rows, and the server does not update again."""
    tables = {0: "weight"}
    nets: list[nn.Embedding] = [nn.Embedding(6, 2, sparse=True) for _ in range(2)]

    def make() -> nn.Module:
        nets.append(nn.Embedding(6, 2, sparse=True))
        with torch.no_grad():
            nets[-1].weight.zero_()
        return nets[-1]

    def repeat(member: Member) -> Tensor:
        exchange, weight = member.exchange, member.net.weight
        if exchange.updates:
            exchange.buckets.tables.changed[0] = torch.tensor([4])
            with torch.no_grad():
                weight[4] = 9.0
        exchange.begin_step(frozenset({0}))
        if not exchange.updates:
            exchange.begin_slice(0)
            member.net(torch.tensor([1])).sum().backward()
            exchange.end_slice()
        exchange.finish(torch.zeros(2))
        exchange.publish()
        return weight.detach().clone()

    worker, server = on_members(
        plan_of(1, 1, 1),
        repeat,
        make=make,
        tables=tables,
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.1),
    )
    assert torch.equal(worker, server)
    assert worker[4].tolist() == [9.0, 9.0]


def test_the_norm_of_rows_is_that_of_the_dense_gradient():
    torch.manual_seed(0)
    rows, width = 5000, 40  # rows of forty straddle the blocks of 65536
    table, dense = nn.Parameter(torch.zeros(rows, width)), nn.Parameter(torch.zeros(rows, width))
    indices = torch.randperm(rows)[:700]
    gradient = torch.sparse_coo_tensor(
        indices[None], torch.randn(700, width), table.shape, check_invariants=False
    )
    table.grad = as_gradient(rows_of(gradient), table)
    dense.grad = table.grad.to_dense()
    # Float64 sums of 28000 squares in two orders: one part in 1e12 is 1e4 times what rounding can do.
    assert torch.allclose(total_norm([table]), total_norm([dense]), rtol=1e-12)
    before = len(table.grad._indices()[0])
    clip([table], 0.01)
    scale_by(table.grad, 0.5)
    assert len(table.grad._indices()[0]) == before
    assert table.grad.is_coalesced()
    assert abs(float(total_norm([table])) - 0.005) < 1e-6  # the values are float32


def test_a_table_and_one_that_another_server_has_fill_the_same_blocks():
    table = nn.Parameter(torch.zeros(5000, 40))
    blocks = []
    for gradient in (None, as_gradient(SparseRows(torch.tensor([4999]), torch.ones(1, 40)), table)):
        table.grad = gradient
        total_norm([table], lambda sums: (blocks.append(len(sums)), sums)[1])
    assert blocks == [4, 4]


def test_a_norm_of_parameters_without_elements_asks_no_other_server():
    asked = []

    def complete(sums):
        asked.append(sums)
        return sums

    assert total_norm([nn.Parameter(torch.zeros(0, WIDTH))], complete) == 0.0
    assert asked == []


def test_a_dense_gradient_of_a_table_is_refused_by_name():
    def tied(member: Member) -> None:
        member.exchange.begin_step(frozenset({0}))
        member.exchange.begin_slice(0)
        net = member.net
        (net.items.weight.sum() + net(torch.ones(2, 6)).sum()).backward()

    with pytest.raises(StepMisuse, match=r"items\.weight.*dense"):
        trained(1, 0, act=tied)


def test_a_sparse_gradient_of_anything_else_is_refused():
    with pytest.raises(StepMisuse, match="sparse gradient"):
        trained(1, 0, tables={})


def test_two_gradients_of_a_table_in_one_slice_are_refused():
    def twice(member: Member) -> None:
        member.exchange.begin_step(frozenset({0}))
        member.exchange.begin_slice(0)
        for _ in range(2):
            member.net(torch.ones(2, 6)).sum().backward()

    with pytest.raises(StepMisuse, match="two gradients"):
        trained(1, 0, act=twice)


def test_tables_keep_nothing_of_a_step_that_broke():
    parameters = list(ratings().parameters())
    tables = SparseTables(parameters, TABLES)
    tables.begin_step()
    tables.begin_slice(0, 0)
    tables.take(0, as_gradient(SparseRows(torch.tensor([3]), torch.ones(1, WIDTH)), parameters[0]))
    tables.begin_step()
    assert tables.nbytes == 0
    tables.begin_slice(0, 0)
    tables.end_slice()
    assert [rows.count for rows in tables.partials(0)] == [0]


def test_a_table_that_was_handed_over_is_published_whole_once():
    """Which of its rows the others lack the server that had it knew, and may be dead."""
    nets: list[nn.Embedding] = []

    def make() -> nn.Module:
        nets.append(nn.Embedding(6, 2, sparse=True))
        return nets[-1]

    def take(member: Member) -> Tensor:
        if member.exchange.updates:
            member.exchange.buckets.tables.all_changed(list(member.net.parameters()))
        member.exchange.publish()
        return member.net.weight.detach().clone()

    worker, server = on_members(
        plan_of(1, 1, 1),
        take,
        make=make,
        tables={0: "weight"},
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.1),
    )
    assert not torch.equal(worker, torch.zeros_like(worker))
    assert torch.equal(worker, server)
