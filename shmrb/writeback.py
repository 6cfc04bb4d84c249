"""The part of a handle that writes late results back to the records they are for (floor F5)."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import numpy as np

from shmrb import core, handles
from shmrb.anchoring import Anchors
from shmrb.attached import Attached
from shmrb.errors import RecordError
from shmrb.fields import show_path
from shmrb.handles import Handles
from shmrb.likeness import is_mapping
from shmrb.nesting import found
from shmrb.priorities import PriorityDesk
from shmrb.records import is_tensor
from shmrb.results import ConditionalUpdateResult
from shmrb.updates import ConditionalUpdates

_REJECTED = 2


class WriteBack(Attached):
    """Priorities and conditional updates of `ReplayBuffer`.

    Results come late: the ring may have given the slot to another record meanwhile. Each row is
    written only if the record it was computed for is still there, decided and done in one step
    against every other process. A row whose record is gone is stale, which is no error.
    """

    _desk: PriorityDesk
    _updates: ConditionalUpdates
    _worker: tuple[int, ThreadPoolExecutor] | None
    # What makes the handle's masks of numpy's; known at the first one.
    _masks_of: Callable[[Any], Any] | None = None

    def update_priority(
        self,
        index: Any,
        priority: Any,
        generation: Any = None,
        *,
        timeout: float | None = None,
    ) -> ConditionalUpdateResult:
        """Gives records new priorities.

        Args:
            index: a batch, which names its records itself; or slots [N]. A slot of -1 is no record.
                In a batch of sequences the anchors get the priorities, each the greatest of its
                real records.
            priority: one finite number >= 0 for all, or one each; of a TD error the absolute value.
            generation: [N], of these slots when they were drawn. Without it whatever record is in a
                slot now is meant, which `stats()` counts as `unchecked_updates`.
            timeout: seconds to wait for a stopped client.

        Returns:
            Which rows were updated. Of several rows for one record the last counts.

        Raises:
            RecordError: a priority that cannot be, or an index without generation that is no slot;
                the row is named, nothing is changed.

        Concurrency: any number of processes. Cost: one native call under the control lock.
        """
        name = "update_priority"
        given = handles.of(index, generation, name)
        if not self._desk.is_kept:
            warnings.warn(
                "Calling update_priority() on a sampler that is not prioritized: the buffer keeps "
                "no priorities. Create it with sampler=PrioritizedSampler(alpha=..., beta=...).",
                stacklevel=2,
            )
            return self._result(np.zeros(given.size, np.uint8), False)
        if is_mapping(index) and (anchors := Anchors.of(index, name)) is not None:
            raw = anchors.reduced(self._desk.floats(priority, name), name)
            verdicts = self._desk.update(anchors.handles, raw, timeout, name)
            return self._result(verdicts[anchors.of_record], False)
        return self._result(self._desk.update(given, priority, timeout, name), False)

    def update_tensordict_priority(
        self, batch: Any, *, timeout: float | None = None
    ) -> ConditionalUpdateResult:
        """Gives the records of a batch the priorities it holds under the priority key.

        Several values of one record are reduced as the sampler says, and those of a sequence go to
        its anchor, as in `update_priority`. A buffer without priorities is left alone.

        Args:
            batch: what `sample` gave, with the key added: [N, ...], a TD error's absolute value.
            timeout: seconds to wait for a stopped client.

        Returns:
            Which rows were updated, as `update_priority`.

        Raises:
            RecordError: the key is missing, or as `update_priority`.
        """
        name = "update_tensordict_priority"
        given = handles.of(batch, None, name)
        if not self._desk.is_kept:
            return self._result(np.zeros(given.size, np.uint8), False)
        values = found(batch, self._desk.path)
        if values is None:
            raise RecordError(
                f"{name}: the batch has no {show_path(self._desk.path)}: set it, or name another "
                "key with priority_key= when attaching."
            )
        raw = self._desk.reduced(values, name)
        return self.update_priority(batch, raw, timeout=timeout)

    def update_if_present(
        self,
        batch: Any = None,
        *,
        index: Any = None,
        generation: Any = None,
        patch: Any,
        version_key: Any = None,
        version: Any = None,
        require_newer: bool = False,
        timeout: float | None = None,
    ) -> ConditionalUpdateResult:
        """Writes new values of some fields over the records that are still there.

        Args:
            batch: what `sample` gave, which names its records itself; or instead
            index, generation: [N] each.
            patch: new values by field, [N, *shape]; nested fields as tuples or nested dictionaries.
                Transforms are bypassed.
            version_key: a field of one number; a row is written only if its `version` is at least
                the one stored there, and stores it. None with a version: the buffer's own versions
                are compared, one a record, unset when it is written.
            version: one for all or one each.
            require_newer: an equal version is too old.
            timeout: seconds to wait for a stopped client.

        Returns:
            Each row is updated, rejected for its version, or stale. Of several rows for one record
            the highest version wins, the last one among equals; without versions the last one.

        Raises:
            UnknownKeyError: a key is no field.
            RecordError: counts, dtypes or shapes do not fit. All rows are checked before the first
                is written.

        Concurrency: any number of processes; each record is changed as a whole. A process that dies
        in the middle costs the one record it was changing. Priorities, order and generations stay.
        Cost: one native call, one copy of the patch; no lock that others need to read or to write
        other records.
        """
        given = self._named(batch, index, generation, "update_if_present")
        verdicts = self._updates.update(given, patch, version_key, version, require_newer, timeout)
        return self._result(verdicts, version is not None)

    def submit_update_if_present(
        self, batch: Any = None, **arguments: Any
    ) -> Future[ConditionalUpdateResult]:
        """The same from a thread of this handle, one call after the other in order of submission.

        Batches and values on the CPU are copied first, so their memory may be used again at once;
        those on another device must stay as they are until the future is done. `close` finishes
        what was submitted.

        Args:
            batch, arguments: as for `update_if_present`.
        """
        given = self._named(
            batch,
            arguments.pop("index", None),
            arguments.pop("generation", None),
            "submit_update_if_present",
        )
        stamps = None if given.generation is None else given.generation.copy()
        arguments |= {"index": given.index.copy(), "generation": stamps}
        arguments["patch"] = _copied(arguments.get("patch"))
        arguments["version"] = _copied(arguments.get("version"))
        ready = _recorded(arguments)

        def update() -> ConditionalUpdateResult:
            for event in ready:
                event.synchronize()
            return self.update_if_present(**arguments)

        return self._executor().submit(update)

    def close(self) -> None:
        """Finishes submitted updates and gives the client slot back; again: nothing.

        Calls of other threads end first, those that wait with `ClosedError`. The buffer stays,
        unless it ends with this creator.
        """
        with self._attachment.guard:
            worker, self._worker = self._worker, None
        if worker is not None and worker[0] == core.this_process():
            worker[1].shutdown(wait=True)
        super().close()

    def _executor(self) -> ThreadPoolExecutor:
        with self._attachment.guard:
            if self._worker is None or self._worker[0] != core.this_process():
                name = f"shmrb updates of {self.name}"
                self._worker = core.this_process(), ThreadPoolExecutor(1, thread_name_prefix=name)
            return self._worker[1]

    def _named(self, batch: Any, index: Any, generation: Any, name: str) -> Handles:
        if (batch is None) == (index is None):
            raise RecordError(f"{name}: give a batch, or index= and generation=.")
        if batch is None:
            return handles.of(index, generation, name)
        if generation is not None or not is_mapping(batch):
            raise RecordError(
                f"{name}: expected a batch, which has its own generations, got "
                f"{type(batch).__name__}. Slots go in as index= with generation=."
            )
        return handles.of_batch(batch, name)

    def _result(self, verdicts: Any, versioned: bool) -> ConditionalUpdateResult:
        form = self._masks_of or self._choose_masks()
        rejected = form(verdicts == _REJECTED) if versioned else None
        updated = verdicts == 1 if versioned else verdicts.view(np.bool_)
        return ConditionalUpdateResult(form(updated), rejected)

    def _choose_masks(self) -> Callable[[Any], Any]:
        self._masks_of = np.asarray
        if self._options.format == "torch":
            import torch

            self._masks_of = torch.from_numpy
        return self._masks_of


def _copied(value: Any) -> Any:
    """A copy of what lies in this process's memory; devices are left to their streams."""
    if is_mapping(value):
        return {key: _copied(below) for key, below in value.items()}
    if is_tensor(value):
        return value.detach().clone() if value.is_cpu else value.detach()
    return np.array(value) if isinstance(value, np.ndarray) else value


def _recorded(value: Any) -> list[Any]:
    """Events after what the streams of this moment still write into the values."""
    if is_mapping(value):
        return [event for below in value.values() for event in _recorded(below)]
    if not is_tensor(value) or value.is_cpu or value.device.type != "cuda":
        return []
    cuda = sys.modules["torch"].cuda
    return [cuda.current_stream(value.device).record_event()]
