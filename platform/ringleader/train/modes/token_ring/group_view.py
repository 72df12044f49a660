"""The node group with which a member of a token ring computes, in one generation, seen from the training thread."""

import torch

from ringleader.train.modes.token_ring.node_group import FollowedTokens, GroupCall, GroupCallKind, NodeGroup
from ringleader.train.modes.token_ring.token_stretch import TokenStretch
from ringleader.train.modes.token_ring.worker_tokens import WorkerTokens


class GroupView:
    """The view of a conductor, of a follower, or of a member that computes alone. Methods that send or wait may raise
    ExchangeBroken.

    Args:
        node_group: None for a member that computes alone.

    Attributes:
        closed: the conductor has said that the stretch is over.
    """

    def __init__(
        self, node_group: NodeGroup | None, stretch_tokens: TokenStretch, tokens: WorkerTokens
    ) -> None:
        self.closed = False
        self._node_group = node_group
        self._stretch_tokens = stretch_tokens
        self._tokens = tokens

    @property
    def alone(self) -> bool:
        return self._node_group is None

    @property
    def follow(self) -> bool:
        """Whether another member decides what this one computes."""
        return self._node_group is not None and not self._node_group.leads

    def call(self, kind: GroupCallKind, *, finished: bool) -> None:
        """Send the call of a conductor, and hear its followers while it waits; others have nobody to call.

        Args:
            finished: it begins no more items.
        """
        node_group, spans = self._node_group, self._tokens.spans
        if node_group is None or not node_group.leads:
            return
        weights = spans.flat.values.cpu() if self._with_weights(kind) else None
        node_group.call(GroupCall(kind, finished, spans.everywhere()), weights)
        # A follower can ask for a pause only in its answers: a stop or a planned change there must not wait for work.
        if kind is GroupCallKind.WAIT and node_group.answers():
            self._stretch_tokens.halt()

    def hear(self) -> GroupCallKind:
        """Take in the conductor's next call, and answer where it waits."""
        assert self._node_group is not None
        call, spans = self._node_group.hear(), self._tokens.spans
        if self._with_weights(call.kind):
            weights = torch.empty_like(spans.flat.values, device="cpu")
            self._node_group.weights(weights)
            spans.put(weights)
            self._tokens.rewind()
        if call.finished:
            self._stretch_tokens.finish()
        # Who holds tokens sees in them what is settled, and may know more than the conductor did.
        if not self._tokens.place.holds:
            spans.heard(call.settled)
        if call.kind is GroupCallKind.WAIT:
            self._node_group.answer(self._stretch_tokens.halted)
        self.closed = call.kind is GroupCallKind.CLOSE
        if self.closed and isinstance(self._stretch_tokens, FollowedTokens):
            spans.close(call.settled)
            self._stretch_tokens.close()
        return call.kind

    def add_up(self, *, void: bool) -> bool:
        """Make the group's sum this member's gradients. Returns whether the round is void: somebody left it by
        `break`."""
        node_group, spans = self._node_group, self._tokens.spans
        if node_group is None:
            return void
        if not node_group.leads:
            node_group.answer(self._stretch_tokens.halted)
        elif node_group.answers():
            self._stretch_tokens.halt()
        sent = spans.flat.gradients(void=void)
        node_group.add_up(sent)
        return spans.flat.take_gradients(sent)

    def _with_weights(self, kind: GroupCallKind) -> bool:
        """Whether weights follow a call: with work, and at the end for followers to whom no tokens come."""
        return kind is GroupCallKind.WORK or (kind is GroupCallKind.CLOSE and self._tokens.place.serves)
