"""The transfer of sparse gradients' rows: to whoever completes a table's sum, and from its server to all as weights.

Every sender's message to a receiver is two: a header with the count of each partial sum's rows, then all indices and
values together. In a ring everybody completes every table, so all send to all, as DDP gathers sparse gradients; with
servers only the owner does. With n touched rows of w values of e bytes in a partial sum, a sender's bytes to one
receiver are the sum over its partial sums of 8 + 4n + n*w*e, each part rounded up to 8 (indices take 8 bytes in a
table of 2^31 rows or more).
"""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor
from torch.nn import Parameter

from ringleader.comm.communicator import Communicator, Ticket
from ringleader.comm.executor import Scratch
from ringleader.comm.rows import SparseRows, SparseTables, added, no_rows
from ringleader.comm.schedules.schedule import PARTIALS, RESULTS
from ringleader.comm.transports import Transport
from ringleader.comm.transports.transport import Work
from ringleader.comm.tree import Tree, TreeNode
from ringleader.exchange.local_sums import LocalSums
from ringleader.exchange.sparse_messages import body_bytes, packed, unpacked


class SparseSums:
    """The sums of all tables' gradients in one generation; alone (no communicator) they are the own ones.

    Args:
        completers: by parameter number: the ranks that need the table's sum, first the one that publishes its rows.
        tag: of the messages, which take two.
        number: the number behind those of all buckets, for errors.
    """

    def __init__(
        self,
        communicator: Communicator | None,
        tables: SparseTables,
        completers: Mapping[int, Sequence[int]],
        *,
        rank: int,
        tag: int,
        number: int,
    ) -> None:
        self._communicator = communicator
        self._tables = tables
        self._completers = completers
        self._rank = rank
        self._tag = tag
        self._number = number
        self._totals: dict[int, SparseRows] = {}
        self._exposed = False

    def push(self, mine: LocalSums) -> list[Ticket]:
        """Start this member's part in the sums of all tables."""
        if not self._tables.names:
            return []
        partials = {number: list(self._tables.partials(number)) for number in self._tables.names}
        nodes, tree = mine.nodes, mine.tree
        if self._communicator is None:
            self._complete(tree, nodes, {self._rank: partials})
            return []

        def act(_: Scratch, transport: Transport) -> None:
            mail = _Mail(transport, self._tag + PARTIALS)
            for peer in range(transport.size):
                theirs = self._completed_by(peer)
                # Who brings no partial sum sends no header either: the tree tells the receivers so.
                if peer != self._rank and theirs and nodes[self._rank]:
                    mail.send(peer, [(self._table(n), rows) for n in theirs for rows in partials[n]])
            own = self._completed_by(self._rank)
            expected = {
                peer: [self._table(number) for number in own for _ in nodes[peer]]
                for peer in range(transport.size)
                if peer != self._rank and own and nodes[peer]
            }
            arrived = mail.receive(expected)
            brought = {peer: _by_table(own, rows, len(nodes[peer])) for peer, rows in arrived.items()}
            self._tables.sent(mail.finish())
            self._complete(tree, nodes, brought | {self._rank: partials})

        rows = [partial.values for stack in partials.values() for partial in stack]
        return [self._communicator.submit_call(act, rows, phase="push", bucket=self._number)]

    def expose(self) -> None:
        """Set the sums as gradients of the tables that this member completes."""
        for number, total in self._totals.items():
            self._tables.expose(number, total)
            changed = total.indices
            # The rows that the next update changes are those that are published then. In a generation's first step
            # those of the update before come too: a server that is a step ahead does not update again, and nobody else
            # has those rows.
            if number in self._tables.changed and not self._exposed:
                changed = torch.unique(torch.cat([self._tables.changed[number], changed]))
            self._tables.changed[number] = changed
        self._totals = {}
        self._exposed = True

    def pull(self) -> list[tuple[Parameter, SparseRows]]:
        """Send everybody the rows that the newest update changed here; blocks until those of all others have come.

        Returns:
            (table, its new rows), for `store`: nothing has changed yet.
        """
        if not self._tables.names or self._communicator is None:
            return []
        changed = [(self._table(n), self._changed(n)) for n in self._published_by(self._rank)]
        taken: list[tuple[Parameter, SparseRows]] = []

        def act(_: Scratch, transport: Transport) -> None:
            mail = _Mail(transport, self._tag + RESULTS)
            others = [peer for peer in range(transport.size) if peer != self._rank]
            # Whoever publishes no table sends no header either: receivers leave it out of `owned`.
            for peer in others if changed else ():
                mail.send(peer, changed)
            owned = {peer: [self._table(number) for number in self._published_by(peer)] for peer in others}
            arrived = mail.receive({peer: tables for peer, tables in owned.items() if tables})
            for peer, rows in arrived.items():
                taken.extend(zip(owned[peer], rows, strict=True))
            self._tables.sent(mail.finish())

        values = [rows.values for _, rows in changed]
        ticket = self._communicator.submit_call(act, values, phase="publish", bucket=self._number)
        self._communicator.wait([ticket])
        return taken

    def close(self) -> None:
        """Drop the communicator."""
        self._communicator = None

    def _complete(
        self,
        tree: Tree,
        nodes: Sequence[Sequence[TreeNode]],
        brought: Mapping[int, Mapping[int, Sequence[SparseRows]]],
    ) -> None:
        """Add the partial sums of all ranks, who own ascending shards, along the tree."""
        for number in self._completed_by(self._rank):
            operands = [
                (node, brought[rank][number][k])
                for rank, held in enumerate(nodes)
                for k, node in enumerate(held)
            ]
            self._totals[number] = _total(tree, operands) or no_rows(self._table(number))

    def _changed(self, number: int) -> SparseRows:
        table = self._table(number).detach()
        indices = self._tables.changed.get(number)
        return no_rows(table) if indices is None else SparseRows(indices, table[indices])

    def _completed_by(self, rank: int) -> list[int]:
        return [number for number in self._tables.names if rank in self._completers[number]]

    def _published_by(self, rank: int) -> list[int]:
        return [number for number in self._tables.names if rank == self._completers[number][0]]

    def _table(self, number: int) -> Parameter:
        return self._tables.parameters[number]


@torch.no_grad()
def store(taken: Sequence[tuple[Parameter, SparseRows]]) -> None:
    """Write new rows into their tables."""
    for table, rows in taken:
        table.index_copy_(0, rows.indices, rows.values)


class _Mail:
    """The messages of one member in one exchange of rows, by way of the host's memory."""

    def __init__(self, transport: Transport, tag: int) -> None:
        self._transport = transport
        self._tag = tag
        self._leaving: list[tuple[Work, Tensor]] = []

    def send(self, peer: int, rows: Sequence[tuple[Tensor, SparseRows]]) -> None:
        """Send rows of these tables."""
        counts = [part.count for _, part in rows]
        body = packed(rows)
        self._post(peer, torch.tensor(counts, dtype=torch.int64))
        # The header has told the receiver not to wait for an empty body.
        if body.numel():
            self._post(peer, body)

    def receive(self, expected: Mapping[int, Sequence[Tensor]]) -> dict[int, list[SparseRows]]:
        """Receive rows; returns by sender one SparseRows for each of the tables it sends rows of."""
        # Counts come first: a receiver has to know how long a body is before it can receive it.
        headers = {peer: torch.zeros(len(tables), dtype=torch.int64) for peer, tables in expected.items()}
        arriving = [self._transport.irecv(header, peer, self._tag) for peer, header in headers.items()]
        for work in arriving:
            work.wait()
        counts = {peer: header.tolist() for peer, header in headers.items()}
        bodies = {
            peer: torch.empty(body_bytes(counts[peer], tables), dtype=torch.uint8)
            for peer, tables in expected.items()
        }
        arriving = [self._transport.irecv(b, peer, self._tag) for peer, b in bodies.items() if b.numel()]
        for work in arriving:
            work.wait()
        return {peer: unpacked(bodies[peer], counts[peer], tables) for peer, tables in expected.items()}

    def finish(self) -> int:
        """Wait until everything is sent; returns the bytes."""
        for work, _ in self._leaving:
            work.wait()
        return sum(message.nbytes for _, message in self._leaving)

    def _post(self, peer: int, message: Tensor) -> None:
        # With the message: its memory has to stay until it is sent.
        self._leaving.append((self._transport.isend(message, peer, self._tag), message))


def _total(tree: Tree, operands: Sequence[tuple[TreeNode, SparseRows]]) -> SparseRows | None:
    """The canonical sum; None where nothing is present."""
    nodes: list[TreeNode] = []
    sums: list[SparseRows] = []
    for node, rows in operands:
        nodes, adds = tree.push(nodes, node)
        sums.append(rows)
        # The right operand was pushed last.
        for _ in range(adds):
            right = sums.pop()
            sums.append(added(sums.pop(), right))
    return sums[0] if sums else None


def _by_table(
    numbers: Sequence[int], rows: Sequence[SparseRows], each: int
) -> dict[int, Sequence[SparseRows]]:
    """The rows by table, in the order of tables: `each` partial sums of every one."""
    return {number: rows[k * each : (k + 1) * each] for k, number in enumerate(numbers)}
