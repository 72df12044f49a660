"""Replays the steps of all ranks in one thread, with every transfer delayed at random as far as a network may."""

import random
from collections import defaultdict, deque

from ringleader.comm.schedules import Add, RankPart, Receive, Send, Zero
from ringleader.comm.schedules.schedule import Step
from ringleader.comm.tree import TreeNode, tree_over
from ringleader.elastic.plan import owned


def parts_of(world: int, shards: int, length: int, present: frozenset[int], chunk: int, window=2, groups=()):
    """Every rank's part where the shards are owned as in a plan."""
    tree = tree_over(shards, present)
    rows = tuple(tree.partials(owned(rank, world, shards)) for rank in range(world))
    return [RankPart(rank, length, rows, tree, chunk, window, groups) for rank in range(world)]


def layouts(world: int) -> list[tuple[tuple[int, ...], ...]]:
    """Ranks on nodes: all on one, two by two, two nodes of unequal size, and two in turn."""
    ranks = tuple(range(world))
    if world == 1:
        return [()]
    pairs = tuple(ranks[i : i + 2] for i in range(0, world, 2))
    uneven = (ranks[: world // 3 + 1], ranks[world // 3 + 1 :])
    return [(), pairs, *([uneven] if all(uneven) else []), (ranks[::2], ranks[1::2])]


def node_sum(node: TreeNode, part: RankPart, values: dict[int, list[int]]) -> list[int]:
    """The sum below a node, for integers, which may be added in any order."""
    covered = [values[s] for s in node.covers(part.tree.total) if s in part.tree.present]
    return [sum(column) for column in zip(*covered, strict=True)] if covered else []


class Replay:
    """Places are lists of integers. A transfer moves its span at some moment between its post and the first wait."""

    def __init__(self, programs: list[list[Step]], rows: list[list[list[int]]], seed: int) -> None:
        self.rows = rows
        self.sent = [0] * len(programs)
        self._random = random.Random(seed)
        self._left = [deque(program) for program in programs]
        self._scratch: list[dict[int, list[int]]] = [defaultdict(list) for _ in programs]
        self._sends: dict[tuple[int, int, int], deque] = defaultdict(deque)
        self._receives: dict[tuple[int, int, int], deque] = defaultdict(deque)
        self._arriving: list[list[Receive]] = [[] for _ in programs]
        self._leaving: list[list[Send]] = [[] for _ in programs]

    def run(self) -> None:
        while True:
            choices = [("step", r) for r in range(len(self._left)) if self._may_step(r)]
            choices += [
                ("move", lane) for lane, sends in self._sends.items() if sends and self._receives[lane]
            ]
            if not choices:
                break
            kind, what = self._random.choice(choices)
            if kind == "step":
                self._step(what, self._left[what].popleft())
            else:
                self._move(what)
        stuck = {r: program[0] for r, program in enumerate(self._left) if program}
        assert not stuck, f"no rank can go on: {stuck}"
        assert not any(self._arriving), "a receive was posted that nobody sends"
        assert not any(self._leaving), "a send was posted that nobody receives"

    def _may_step(self, rank: int) -> bool:
        if not self._left[rank]:
            return False
        step = self._left[rank][0]
        if isinstance(step, Send):
            return not self._pending(rank, step.place, step.span)
        if isinstance(step, Add):
            pending = [self._pending(rank, place, step.span) for place in (step.into, step.source)]
            return not any(pending) and not self._leaves(rank, step.into, step.span)
        return True

    def _pending(self, rank: int, place: int, span: tuple[int, int]) -> list[Receive]:
        """Receives a step has to wait for; a slot is only ever named with the span that it was received for."""
        found = [r for r in self._arriving[rank] if r.place == place and _touch(r.span, span, place)]
        assert place >= 0 or all(r.span == span for r in found), f"rank {rank} touches {place}{span}: {found}"
        return found

    def _leaves(self, rank: int, place: int, span: tuple[int, int]) -> bool:
        return any(s.place == place and _touch(s.span, span, place) for s in self._leaving[rank])

    def _step(self, rank: int, step: Step) -> None:
        match step:
            case Receive():
                twice = [r for r in self._arriving[rank] if r.place == step.place]
                assert not any(_touch(r.span, step.span, step.place) for r in twice), f"{step} over {twice}"
                lane = (step.peer, rank, step.channel)
                self._receives[lane].append(step)
                self._arriving[rank].append(step)
            case Send():
                self._sends[rank, step.peer, step.channel].append(step)
                self._leaving[rank].append(step)
                self.sent[rank] += step.span[1] - step.span[0]
            case Add():
                both = zip(
                    self._read(rank, step.into, step.span),
                    self._read(rank, step.source, step.span),
                    strict=True,
                )
                self._write(rank, step.into, step.span, [a + b for a, b in both])
            case Zero():
                self._write(rank, step.place, step.span, [0] * (step.span[1] - step.span[0]))

    def _move(self, lane: tuple[int, int, int]) -> None:
        send, receive = self._sends[lane].popleft(), self._receives[lane].popleft()
        assert send.span == receive.span, f"on {lane} {send} meets {receive}"
        self._write(lane[1], receive.place, receive.span, self._read(lane[0], send.place, send.span))
        self._leaving[lane[0]].remove(send)
        self._arriving[lane[1]].remove(receive)

    def _read(self, rank: int, place: int, span: tuple[int, int]) -> list[int]:
        if place >= 0:
            return self.rows[rank][place][span[0] : span[1]]
        assert len(self._scratch[rank][place]) == span[1] - span[0], f"slot {place} holds no {span}"
        return list(self._scratch[rank][place])

    def _write(self, rank: int, place: int, span: tuple[int, int], values: list[int]) -> None:
        if place >= 0:
            self.rows[rank][place][span[0] : span[1]] = values
        else:
            self._scratch[rank][place] = list(values)


def _touch(a: tuple[int, int], b: tuple[int, int], place: int) -> bool:
    return place < 0 or (a[0] < b[1] and b[0] < a[1])
