"""What a user's handle is attached to, and how that ends (floor F5)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from shmrb.attachment import Attachment
from shmrb.errors import ClosedError
from shmrb.opening import HandleOptions
from shmrb.results import BufferStats
from shmrb.schema import Schema
from shmrb.segment import snapshot

if TYPE_CHECKING:
    from typing_extensions import Self


class Attached:
    """One process's attachment to a buffer; a part of `ReplayBuffer`."""

    _attachment: Attachment
    _options: HandleOptions

    @property
    def name(self) -> str:
        """What others attach by; a generated one for a private buffer."""
        return self._attachment.address.name

    @property
    def initialized(self) -> bool:
        """Whether the schema is known and memory reserved."""
        return self._attachment.try_join() is not None

    @property
    def schema(self) -> Schema | None:
        """The fields of a record, None before the first write decides."""
        return self._attachment.spec.schema if self.initialized else None

    def statistics(self) -> BufferStats:
        """The whole buffer at one moment, as a `BufferStats`."""
        spec = self._attachment.spec
        if not self.initialized:
            return BufferStats(
                name=self.name, size=0, capacity=spec.capacity, write_count=0, initialized=False
            )
        return snapshot.stats(self._attachment.member.segment, self.name, self._attachment.spec)

    def stats(self) -> dict[str, Any]:
        """TorchRL's keys (size, write_count, capacity, utilization), counters and states."""
        return self.statistics().as_dict()

    # ---- life ------------------------------------------------------------------------------------

    def client(self) -> Self:
        """The handle itself: it is as good as any other."""
        return self

    def start(self) -> Self:
        """The handle itself: there is nothing to start."""
        return self

    @property
    def is_alive(self) -> bool:
        """Whether the handle may be used."""
        return not self._attachment.is_closed

    def shutdown(self, timeout: float | None = None) -> None:
        """The same as `close`."""
        self.close()

    def close(self) -> None:
        """Gives the client slot back; again: nothing.

        Calls of other threads end first, those that wait with `ClosedError`. The buffer stays,
        unless it ends with this creator.
        """
        self._attachment.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def _state_to_travel(self) -> tuple[Any, HandleOptions]:
        """Where the handle attaches and as what, wherever it lands."""
        if self._attachment.is_closed:
            raise ClosedError(f"this handle of {self.name} was closed; it has nowhere to attach.")
        return self._attachment.address, self._options
