"""The part of a handle that shows what the buffer is put together from (floor F5)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shmrb.consumer import Consumer
from shmrb.limits import Limits
from shmrb.priorities import PriorityDesk, reduction_of
from shmrb.slotwise import Slotwise
from shmrb.spec import Sampler
from shmrb.transforms import Transform, Transforms
from shmrb.views import SamplerView, StorageView, WriterView

if TYPE_CHECKING:
    from typing_extensions import Self


class Parts(Slotwise):
    """Storage, writer, sampler, limits and transforms of `ReplayBuffer`."""

    _consumer: Consumer
    _desk: PriorityDesk
    _transforms: Transforms

    @property
    def storage(self) -> StorageView:
        """Where the records lie."""
        return StorageView(self)

    @property
    def writer(self) -> WriterView:
        """How slots are taken."""
        return WriterView(self)

    @property
    def sampler(self) -> SamplerView:
        """How this handle chooses."""
        return SamplerView(self._consumer, self._desk)

    def set_sampler(self, sampler: Sampler) -> Sampler:
        """Gives this handle another sampler; the former one."""
        former = self._consumer.sampler
        spec = self._attachment.spec.for_handle(
            sampler=sampler,
            sample_unit=self._consumer.sample_unit,
            batch_size=self._consumer.batch_size,
        )
        self._consumer.sampler = spec.sampler
        self._desk.reduction = reduction_of(spec.sampler)
        return former

    @property
    def limiter(self) -> Limits:
        """The rate limits: look at them, change them, lift them for preloading."""
        return Limits(self._attachment)

    # ---- transforms ------------------------------------------------------------------------------

    @property
    def transform(self) -> Transforms:
        """This handle's transforms."""
        return self._transforms

    def append_transform(self, transform: Transform, *, invert: bool = False) -> Self:
        """Runs a callable on each batch this handle reads; with `invert`, before each write."""
        return self.insert_transform(len(self._transforms), transform, invert=invert)

    def insert_transform(self, index: int, transform: Transform, *, invert: bool = False) -> Self:
        """The same, at a place in the chain."""
        self._transforms.insert(index, transform, invert)
        return self
