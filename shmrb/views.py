"""The parts of a buffer that TorchRL's users reach for: storage, writer, sampler (floor F5)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from shmrb.consumer import Consumer
from shmrb.priorities import PriorityDesk
from shmrb.spec import SamplerWithoutReplacement

if TYPE_CHECKING:
    from shmrb.slotwise import Slotwise


class StorageView:
    """Where a buffer's records lie."""

    ndim = 1

    def __init__(self, buffer: Slotwise) -> None:
        self._buffer = buffer

    @property
    def max_size(self) -> int:
        """Slots."""
        return self._buffer._attachment.spec.capacity

    @property
    def initialized(self) -> bool:
        """Whether memory is reserved."""
        return self._buffer.initialized

    @property
    def lanes(self) -> int:
        """Independent streams."""
        return self._buffer._attachment.spec.lanes

    def __len__(self) -> int:
        return len(self._buffer)


class WriterView:
    """How a buffer's slots are taken."""

    tracks_generations = True

    def __init__(self, buffer: Slotwise) -> None:
        self._buffer = buffer

    def generations_of(self, index: Any) -> Any:
        """As `ReplayBuffer.generations_of`."""
        return self._buffer.generations_of(index)


class SamplerView:
    """How one handle chooses. The exponents are the buffer's: set here, they hold for everybody."""

    def __init__(self, consumer: Consumer, desk: PriorityDesk) -> None:
        self._consumer = consumer
        self._desk = desk

    @property
    def alpha(self) -> float:
        """mass = (priority + eps) ** alpha; setting it computes every mass anew."""
        return self._desk.exponents[0]

    @alpha.setter
    def alpha(self, value: float) -> None:
        self._desk.set_exponents(value, None, None)

    @property
    def beta(self) -> float:
        """weight = (mass / least mass) ** -beta."""
        return self._desk.exponents[1]

    @beta.setter
    def beta(self, value: float) -> None:
        self._desk.set_exponents(None, value, None)

    @property
    def default_priority(self) -> float:
        """What records without a priority of their own enter with."""
        return self._desk.default_priority

    def priorities_of(self, index: Any) -> Any:
        """The priorities of slots, float32 [N]; NaN where no record is."""
        return self._consumer.form.from_numpy(self._desk.of_slots(index))

    @property
    def ran_out(self) -> bool:
        """Whether a pass without replacement is over."""
        return self._consumer.ran_out

    @ran_out.setter
    def ran_out(self, value: bool) -> None:
        self._consumer.ran_out = value

    @property
    def drop_last(self) -> bool:
        """Whether the short batch at the end of a pass is left out."""
        sampler = self._consumer.sampler
        return isinstance(sampler, SamplerWithoutReplacement) and sampler.drop_last

    def __repr__(self) -> str:
        return repr(self._consumer.sampler)
