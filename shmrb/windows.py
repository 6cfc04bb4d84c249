"""Drawing windows: which anchors, one native call, as many batches as asked for (floor F5)."""

from __future__ import annotations

from typing import Any

from shmrb.attachment import Attachment
from shmrb.batches import BatchFormat
from shmrb.core import AnchorKind, Bell, Outcome, Segment, Status
from shmrb.drawn import Drawn
from shmrb.ends import EndOrder, nothing_there
from shmrb.errors import EmptyBufferError
from shmrb.orders import Order, SlotOrder, TrajectoryOrder
from shmrb.planner.passes import Pass
from shmrb.planner.units import Shape, anchor_kind, sequence_shape
from shmrb.returns import ReturnUnit
from shmrb.sequences import SequenceUnit
from shmrb.slices import SliceUnit
from shmrb.spec import (
    FifoSampler,
    LifoSampler,
    MultiStep,
    Sampler,
    SampleUnit,
    Sequence,
    SliceSampler,
    SliceSamplerWithoutReplacement,
)
from shmrb.steps import is_stored_once
from shmrb.waiting import Call
from shmrb.windowing import Flags, Frame, Unit, joined


class WindowSource:
    """Draws the windows of one handle.

    Args:
        attachment: the handle's.
        unit: what becomes of windows.
        kind: where anchors come from.
        order: what gives them, if `kind` is GIVEN.
    """

    def __init__(
        self, attachment: Attachment, unit: Unit, kind: AnchorKind, order: Order | None
    ) -> None:
        self.attachment = attachment
        self.unit = unit
        self.kind = kind
        self.order = order

    def draw(self, batch_size: int, timeout: float | None, out: Any) -> Drawn:
        """A batch of whole windows.

        Raises as `draw_frame`.
        """
        return self.unit.drawn(self.draw_frame(batch_size, timeout, out))

    def draw_frame(self, batch_size: int, timeout: float | None, out: Any) -> Frame:
        """The windows of a batch, before the sample unit makes it of them.

        Raises:
            NoWindowError: there are records, and no window fits anywhere.
            EmptyBufferError, DeadlineError: as for single records.
        """
        attachment, unit = self.attachment, self.unit
        count, shape = unit.shape(batch_size)
        limited = attachment.spec.limiter is not None
        cost = unit.cost(count, shape) if limited else 0
        waits = limited or (timeout is not None and timeout > 0)
        call = Call("sample", cost, Bell.RECORDS, waits, shape.required, unit.hint)
        if self.order is not None:
            return self._draw_in_order(self.order, (count, shape), call, timeout, out)
        frame = unit.frame(count, shape, out)
        attachment.run(
            lambda segment: frame.draw(segment, attachment.rng, self.kind, cost), call, timeout
        )
        return frame

    def refreshed(self, frame: Frame, stale: Flags, timeout: float) -> Frame | None:
        """A frame whose stale windows are drawn again; those of a pass are left out.

        Args:
            frame: drawn earlier.
            stale: bool, one a window.
            timeout: seconds to wait.

        Returns:
            None: nothing is left.
        """
        form = self.unit.form
        frames = [] if stale.all() else [frame.kept(~stale, form)]
        if self.order is None:
            again = self.unit.frame(int(stale.sum()), frame.shape, None)
            self.attachment.run(
                lambda segment: again.draw(segment, self.attachment.rng, self.kind, 0),
                Call("sample", window=frame.shape.required),
                timeout,
            )
            frames.append(again)
        return joined(frames, form) if frames else None

    def _draw_in_order(
        self,
        order: Order,
        wanted: tuple[int, Shape],
        call: Call,
        timeout: float | None,
        out: Any,
    ) -> Frame:
        """The next windows of the pass; anchors without one are passed over."""
        unit = self.unit
        found: list[Frame] = []
        missing, shape = wanted
        while missing > 0:
            take = _Take(self, order, missing, shape, out)
            self.attachment.run(take, call, timeout)
            frame = take.frame
            found.append(frame.kept(frame.anchors[1] >= 0, unit.form))
            missing -= found[-1].count
            out = None
            if order.ran_out:
                break
        if not any(frame.count for frame in found):
            name = self.attachment.address.name
            raise EmptyBufferError(
                f"Cannot sample from an empty storage. ({name} has no record from which a window "
                f"of {call.window} fits.)"
            )
        return joined(found, unit.form)


def window_source(
    attachment: Attachment,
    form: BatchFormat,
    sampler: Sampler,
    sample_unit: SampleUnit,
    slots: Pass | None,
) -> WindowSource | None:
    """What draws the windows that a handle's sampler and sample unit ask for.

    Args:
        attachment: the handle's.
        form: of its records.
        sampler, sample_unit: the handle's.
        slots: the pass of a sampler without replacement.

    Returns:
        None: an anchor is its own record, and nothing else.
    """
    schema, kind = form.schema, anchor_kind(sampler)
    stored_once = is_stored_once(schema)
    by_mass = kind is AnchorKind.BY_MASS
    order: Order | None = None
    unit: Unit
    if slots is not None:
        kind, order = AnchorKind.GIVEN, SlotOrder(attachment, slots)
    elif isinstance(sampler, FifoSampler | LifoSampler):
        kind, order = AnchorKind.GIVEN, EndOrder(attachment, isinstance(sampler, LifoSampler))
    if isinstance(sampler, SliceSampler):
        unit = SliceUnit(schema, form.name, sampler)
        if isinstance(sampler, SliceSamplerWithoutReplacement):
            order = TrajectoryOrder(attachment, sampler)
    elif isinstance(sample_unit, Sequence):
        unit = SequenceUnit(form, sequence_shape(sample_unit, stored_once), by_mass)
    elif isinstance(sample_unit, MultiStep):
        unit = ReturnUnit(schema, form.name, sample_unit, by_mass)
    elif stored_once:
        unit = ReturnUnit(schema, form.name, None, by_mass)
    else:
        return None
    return WindowSource(attachment, unit, kind, order)


class _Take:
    """One native read of the next windows of a pass, chosen anew each time it is tried."""

    frame: Frame

    def __init__(
        self, source: WindowSource, order: Order, count: int, shape: Shape, out: Any
    ) -> None:
        self.source = source
        self.order = order
        self.count = count
        self.shape = shape
        self.out = out

    def __call__(self, segment: Segment) -> Outcome:
        source, order = self.source, self.order
        attachment = source.attachment
        limited = attachment.spec.limiter is not None
        with attachment.guard:
            anchors = order.choose(segment, self.count, self.shape.length)
            if anchors is None:
                return nothing_there(segment)
            if len(anchors) == 0:
                order.give_back()
                _, _, _, _, wake = nothing_there(segment)
                return int(Status.NO_WINDOW), 0, 0, 0, wake
            delivered = False
            try:
                cost = source.unit.cost(len(anchors), self.shape) if limited else 0
                out = self.out if len(anchors) == self.count else None
                frame = source.unit.frame(len(anchors), self.shape, out)
                frame.anchors[0] = anchors
                outcome = frame.draw(segment, attachment.rng, AnchorKind.GIVEN, cost)
                delivered = outcome[0] == Status.OK
                if delivered:
                    frame.anchors[1][~order.hold(segment, anchors)] = -1
                    self.frame = frame
            finally:
                if not delivered:
                    order.give_back()
        return outcome
