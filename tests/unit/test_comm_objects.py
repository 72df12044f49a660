"""Objects from one member to another: the same on the other side, and nothing of a stranger's is ever made."""

import io
import pickle
import re
from collections import Counter, OrderedDict, defaultdict, deque
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from ringleader.comm import objects
from ringleader.comm.communicator import Communicator
from ringleader.comm.objects import (
    HEAD_AT,
    LENGTH_BYTES,
    OBJECT,
    packed,
    receive,
    sent,
    unpacked,
    unpacked_of_any_type,
)
from ringleader.comm.seal import Seal, new_secret
from ringleader.comm.transports.inprocess import Hub, InProcessTransport
from ringleader.errors import ExchangeBroken, ObjectRefused, ObjectUnexpected
from ringleader.exchange.side_channel import SideChannel
from ringleader.train.generation.control_word import SliceReport
from ringleader.train.modes.items import ItemSet
from ringleader.train.modes.local_sgd.replicas import Replica
from ringleader.train.modes.local_sgd.round_attributes import LEFT_TYPES, LeftAttributes
from ringleader.train.modes.token_ring.gossip import Gossip
from ringleader.train.modes.token_ring.node_group import GroupCall, GroupCallKind, NodeGroup
from ringleader.train.modes.token_ring.regeneration import TokenCopy
from ringleader.train.state.optimizers.attribute_values import ParameterName
from ringleader.train.state.state_transfer import StateTransfer
from ringleader.train.state.training_state import TrainingState

SEAL = Seal(bytes(range(32)), "job/1.1")


class Harm:
    """Runs code in whoever unpickles it."""

    def __init__(self, sign: Path) -> None:
        self._sign = sign

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self._sign,)


@pytest.fixture
def sign(tmp_path: Path) -> Path:
    """Is there once the code of a stranger has run."""
    return tmp_path / "owned"


def saved(value: Any) -> Tensor:
    buffer = io.BytesIO()
    torch.save(value, buffer)
    return torch.frombuffer(bytearray(buffer.getvalue()), dtype=torch.uint8)


def strangers(value: Any) -> list[Tensor]:
    """What somebody without the secret can send: bare pickles, and messages of the right form."""
    bare = torch.frombuffer(bytearray(pickle.dumps(value)), dtype=torch.uint8)
    foreign = packed(value, Seal(new_secret(), "job/1.1"))
    untagged = foreign.clone()
    untagged[: HEAD_AT - LENGTH_BYTES] = 0
    return [
        bare,
        saved(value),
        foreign,
        untagged,
        torch.empty(0, dtype=torch.uint8),
        torch.zeros(40, dtype=torch.uint8),
    ]


def test_nothing_of_what_a_stranger_sends_is_unpickled(sign: Path):
    for payload in strangers({"kind": Harm(sign)}):
        with pytest.raises(ObjectRefused, match="no member of this generation has sealed it"):
            unpacked_of_any_type(payload, SEAL)
        with pytest.raises(ObjectRefused):
            unpacked(payload, SEAL)
    assert not sign.exists()
    unpacked_of_any_type(packed(Harm(sign), SEAL), SEAL)
    assert sign.exists(), "the code would have run"


def test_a_sealed_message_whose_head_was_changed_on_its_way_is_refused():
    payload = packed({"step": 7, "weights": torch.ones(3)}, SEAL)
    length = int.from_bytes(payload[HEAD_AT - LENGTH_BYTES : HEAD_AT].numpy().tobytes(), "little")
    for place in (0, 31, HEAD_AT - LENGTH_BYTES, HEAD_AT, HEAD_AT + length - 1):
        spoilt = payload.clone()
        spoilt[place] ^= 1
        with pytest.raises(ObjectRefused):
            unpacked(spoilt, SEAL)


def test_an_object_of_another_generation_or_attempt_is_refused():
    for other in (Seal(bytes(range(32)), "job/1.2"), Seal(new_secret(), "job/1.1")):
        with pytest.raises(ObjectRefused):
            unpacked(packed([1], other), SEAL)


def test_a_tag_is_of_its_parts_and_of_the_boundaries_between_them():
    tags = [
        SEAL.tag(*parts) for parts in ((b"ab", b"c"), (b"a", b"bc"), (b"abc",), (b"abc", b""), (b"", b"abc"))
    ]
    assert len(set(tags)) == len(tags)


def test_a_word_of_the_store_is_no_object():
    """The two have tags of their own."""
    head = pickle.dumps(([], pickle.dumps("x")))
    tag = SEAL.tag(b"word", head)
    payload = bytearray(tag + len(head).to_bytes(LENGTH_BYTES, "little") + head)
    with pytest.raises(ObjectRefused):
        unpacked(torch.frombuffer(payload, dtype=torch.uint8), SEAL)
    assert SEAL.fits(SEAL.tag(OBJECT, head), OBJECT, head)


def test_where_the_types_of_a_message_are_known_no_other_is_made(sign: Path):
    """Also where a member has sealed it."""
    with pytest.raises(ObjectUnexpected, match=r"pathlib\.Path"):
        unpacked(packed({"step": Harm(sign)}, SEAL), SEAL, ItemSet)
    with pytest.raises(
        ObjectUnexpected, match=r"ringleader\.train\.modes\.token_ring\.regeneration\.TokenCopy"
    ):
        unpacked(packed(TokenCopy(1, ItemSet(), frozenset()), SEAL), SEAL, ItemSet)
    assert not sign.exists()


def test_a_refused_object_breaks_the_exchange_so_that_members_meet_again():
    assert issubclass(ObjectRefused, ExchangeBroken)


def test_values_tensors_and_arrays_come_as_they_were():
    shared = torch.randn(3, 4)
    value = {
        "twice": [shared, shared],
        "strided": shared.t(),
        "kinds": [torch.ones(2, dtype=dtype) for dtype in objects.PLAIN.values()],
        "empty": torch.empty(0, 3),
        "scalar": torch.tensor(2.5),
        "array": np.arange(6.0).reshape(2, 3),
        "ordered": np.asfortranarray(np.arange(6).reshape(2, 3)),
        "plain": (
            1,
            "a",
            None,
            2.5,
            {3},
            frozenset({4}),
            b"5",
            2**70,
            np.float64(1.5),
            torch.float16,
            torch.Size([2]),
        ),
        "names": OrderedDict(a=1),
    }
    came = unpacked(packed(value, SEAL), SEAL)
    assert came["twice"][0] is came["twice"][1]
    assert torch.equal(came["twice"][0], shared)
    assert torch.equal(came["strided"], shared.t())
    for mine, theirs in zip(value["kinds"], came["kinds"], strict=True):
        assert mine.dtype == theirs.dtype
        assert torch.equal(mine, theirs)
    assert came["empty"].shape == (0, 3)
    assert came["scalar"].shape == ()
    assert came["array"].tolist() == value["array"].tolist()
    assert came["array"].flags.writeable
    assert (came["ordered"] == value["ordered"]).all()
    assert came["plain"] == value["plain"]
    assert came["names"] == value["names"]


def test_what_came_keeps_nothing_but_itself():
    """A small tensor does not hold on to the message of hundreds of megabytes that brought it."""
    came = unpacked(packed([torch.ones(2), torch.ones(1000)], SEAL), SEAL)
    assert came[0].untyped_storage().nbytes() == came[0].nbytes


def test_what_belongs_to_the_user_may_be_of_any_type():
    parameter = nn.Parameter(torch.ones(2))
    sparse = torch.eye(2).to_sparse()
    came = unpacked_of_any_type(packed({"p": parameter, "s": sparse, "c": Path("x")}, SEAL), SEAL)
    assert isinstance(came["p"], nn.Parameter)
    assert came["p"].requires_grad
    assert torch.equal(came["s"].to_dense(), torch.eye(2))
    assert came["c"] == Path("x")


# --- wherever a member takes an object ----------------------------------------------------------------------------


def pair(foreign: Seal) -> tuple[InProcessTransport, InProcessTransport]:
    """A stranger, and a member who takes it for rank 0."""
    hub = Hub(2, deadline_s=30.0)
    stranger, member = hub.transport(0), hub.transport(1)
    stranger.seal, member.seal = foreign, SEAL
    return stranger, member


def test_a_strangers_state_heals_nobody(sign: Path):
    transfer = StateTransfer(TrainingState())
    for payload in strangers({"models": Harm(sign)}):
        with pytest.raises(ObjectRefused):
            transfer.restore(payload, SEAL)
    assert not sign.exists()


def test_a_joiner_unpickles_nothing_of_a_stranger_that_plays_its_donor(sign: Path):
    stranger, member = pair(Seal(new_secret(), "job/1.1"))
    giving, taking = Communicator(stranger), Communicator(member)
    with ThreadPoolExecutor(1) as pool:
        for payload in strangers({"kind": Harm(sign)}):
            sending = pool.submit(SideChannel(giving).send_state, 1, payload)
            with pytest.raises(ObjectRefused):
                unpacked_of_any_type(SideChannel(taking).receive_state(0), SideChannel(taking).seal)
            sending.result(30)
    assert not sign.exists()
    for communicator in (giving, taking):
        communicator.close()


def test_a_follower_unpickles_nothing_of_a_stranger_that_plays_its_conductor(sign: Path):
    stranger, member = pair(Seal(new_secret(), "job/1.1"))
    for message in sent((Harm(sign), None), stranger.seal):
        stranger.isend(message, 1, 16)
    communicator = Communicator(member)
    group = NodeGroup(communicator, [0, 1], Gossip(), together=False)
    with pytest.raises(ExchangeBroken, match="no member of this generation has sealed it"):
        group.hear()
    assert not sign.exists()
    communicator.close()


def test_what_members_of_a_node_group_say_comes_as_it_was_said():
    hub = Hub(2, deadline_s=30.0)
    ends = hub.transport(0), hub.transport(1)
    said = (
        GroupCall(GroupCallKind.WORK, finished=False, settled=ItemSet(3, [5])),
        ({1: np.ones(2)}, 2, torch.ones(4)),
    )
    works = [ends[0].isend(message, 1, 16) for message in sent(said, ends[0].seal)]
    call, (reports, newest, buffers) = receive(ends[1], 0, 16, GroupCall, GroupCallKind, ItemSet)
    for work in works:
        work.wait()
    assert (call.kind, call.finished, call.settled.encode().tolist()) == (
        GroupCallKind.WORK,
        False,
        ItemSet(3, [5]).encode().tolist(),
    )
    assert (reports[1].tolist(), newest, buffers.tolist()) == ([1.0, 1.0], 2, [1.0] * 4)


def test_a_member_of_an_enum_comes_from_every_python(monkeypatch: pytest.MonkeyPatch) -> None:
    def by_name(kind: GroupCallKind, _: object) -> tuple[Any, ...]:
        return getattr, (type(kind), kind.name)  # as Python 3.11.2 does

    monkeypatch.setattr(GroupCallKind, "__reduce_ex__", by_name)
    call = unpacked(packed([GroupCallKind.WORK, GroupCallKind.WORK], SEAL), SEAL, GroupCallKind)
    assert call == [GroupCallKind.WORK] * 2
    assert type(call[0]) is GroupCallKind


def test_a_replica_comes_with_its_reports():
    values = {
        ("sums",): defaultdict(list, {ParameterName("0.w"): deque([1.0], maxlen=3)}),
        ("n",): Counter("a"),
    }
    left = LeftAttributes(0.25, {0: values}, {0: [torch.ones(2)]})
    replica = Replica(
        {0: torch.ones(3)}, {2: SliceReport(1.0, torch.tensor(0.5), 7, 8, (torch.tensor(2.0),))}, None, left
    )
    came = unpacked(packed(replica, SEAL), SEAL, Replica, SliceReport, *LEFT_TYPES)
    assert came.attributes.values == {0: values}
    assert torch.equal(came.moves[0], torch.ones(3))
    assert (came.reports[2].checksum, float(came.reports[2].values[0]), came.left) == (7, 2.0, None)


def test_one_module_alone_unpickles_what_members_send_each_other():
    """What a donor's skeleton is made of again lies in a head that this module has opened."""
    unpickles = re.compile(r"pickle\.loads?\(|Unpickler|torch\.load\(|put_together\(")
    root = Path(objects.__file__).parents[1]
    found = {
        path.relative_to(root).as_posix()
        for folder in ("comm", "sync", "train", "elastic")
        for path in (root / folder).rglob("*.py")
        if unpickles.search(path.read_text(encoding="utf-8"))
    }
    own_file = {"train/program_check/runs.py"}  # what `ringleader check` wrote itself, in a folder of its own
    assert found == {"comm/objects.py", "train/generation/joining/follower.py"} | own_file


def test_an_object_may_lie_in_memory_that_is_there() -> None:
    value = {"weights": torch.arange(300.0), "step": 7}
    room = torch.zeros(4096, dtype=torch.uint8)
    payload = packed(value, SEAL, room)
    assert payload.data_ptr() == room.data_ptr()
    assert torch.equal(unpacked(payload, SEAL)["weights"], value["weights"])
    assert packed(value, SEAL, room[:100]).data_ptr() != room.data_ptr()
