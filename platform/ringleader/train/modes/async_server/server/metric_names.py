"""The metrics' names of a loop whose items are leased: the first item sets them for all, whoever computes the
others."""

from torch import Tensor

from ringleader.errors import StepMisuse
from ringleader.train.modes.async_server.messages import PushHeader


class MetricNaming:
    """A server's check of the names. A worker tells the names once a generation, and their checksum with every item.

    Attributes:
        names: of the metrics, sorted; none before the first item.
    """

    def __init__(self) -> None:
        self.names: tuple[str, ...] = ()
        self._sign: int | None = None
        self._first = ""
        # The checksum of no names is 0, and a worker without metrics tells none.
        self._known: dict[int, tuple[str, ...]] = {0: ()}

    def hear(self, worker: str, push: PushHeader, told: Tensor | None) -> None:
        """Check an item of this worker that is in.

        Args:
            told: (bytes,) uint8 of the names, where they came with it.

        Raises:
            StepMisuse: naming two workers that gave different metrics.
        """
        sign = int(push.report[3])
        if told is not None:
            self._known[sign] = tuple(bytes(told.tolist()).decode().split("\n"))
        if self._sign is None:
            self._sign, self._first, self.names = sign, worker, self._known.get(sign, ())
        if sign != self._sign:
            raise StepMisuse(
                f"worker {self._first} gave session.step the metrics {list(self.names)}, worker {worker} "
                f"{list(self._known.get(sign, ()))}.",
                hint="Give the same metrics in every turn of every loop, on every worker.",
            )
