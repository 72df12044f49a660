"""Parameters that live in shared memory come back to the memory that the program still holds."""

import torch
from torch import Tensor, nn
from torch.nn import Parameter

from ringleader.comm.buckets import Buckets
from ringleader.exchange.local_sums import reusable


def settled(net: nn.Module, **others: Buckets) -> Buckets:
    buckets = Buckets(list(net.parameters()), shared=True, **others)
    settle(buckets)
    return buckets


def settle(buckets: Buckets) -> None:
    for bucket in buckets.buckets:
        buckets.settle(bucket)


def train(net: nn.Module) -> None:
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.add_(1)


def same(held: dict[str, Tensor], net: nn.Module) -> bool:
    return all(torch.equal(value, net.state_dict()[name]) for name, value in held.items())


def held(buckets: Buckets) -> list[int]:
    return sorted(number for weights in buckets.weights.buckets.values() for number in weights.former)


def test_a_state_dict_without_a_copy_shows_the_weights_as_in_one_process() -> None:
    net = nn.Linear(3, 2)
    state = net.state_dict()
    buckets = settled(net)
    for _ in range(3):
        train(net)
        assert not same(state, net)
        buckets.weights.bring_back()
        assert same(state, net)
        assert [p.data_ptr() for p in net.parameters()] == [value.data_ptr() for value in state.values()]
        settle(buckets)
    assert held(buckets) == [0, 1]


def test_what_the_program_holds_no_longer_is_let_go() -> None:
    net = nn.Linear(3, 2)
    buckets = settled(net)
    assert held(buckets) == []
    buckets.weights.move_out()
    weight = net.state_dict()["weight"]
    settle(buckets)
    assert held(buckets) == [0]
    buckets.weights.bring_back()
    del weight
    settle(buckets)
    assert held(buckets) == []


def test_other_buckets_take_weights_from_where_the_program_holds_them() -> None:
    net = nn.Linear(3, 2)
    weight = net.state_dict()["weight"]
    first = settled(net)
    train(net)
    first.tainted = True
    second = reusable(first, list(net.parameters()), (0, 0), {}, shared=True)
    settle(second)
    assert second is not first
    assert held(second) == [0], "the bias lived in the arena of the first ones, which nobody else holds"
    train(net)
    second.weights.bring_back()
    assert same({"weight": weight}, net)


def test_memory_that_the_program_assigned_stays_the_parameter_s() -> None:
    net = nn.Linear(3, 2)
    before = net.state_dict()
    buckets = settled(net)
    buckets.weights.bring_back()
    given = torch.ones(2, 3)
    net.weight.data = given
    buckets.weights.bring_back()
    assert net.weight.data_ptr() == given.data_ptr()
    settle(buckets)
    train(net)
    buckets.weights.bring_back()
    assert torch.equal(given, torch.full((2, 3), 2.0))
    assert not torch.equal(before["weight"], given)


def test_parameters_that_share_one_memory_share_it_when_they_are_back() -> None:
    flat = torch.zeros(6)
    parameters = [Parameter(flat[:4].view(2, 2)), Parameter(flat[4:])]
    buckets = Buckets(parameters, shared=True)
    settle(buckets)
    with torch.no_grad():
        parameters[1].fill_(3)
    buckets.weights.bring_back()
    assert flat.tolist() == [0, 0, 0, 0, 3, 3]
