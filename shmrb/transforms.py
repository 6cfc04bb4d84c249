"""The transforms of one handle: callables on its batches, in its process (floor F5).

On reading they run in order after the gather; on writing, their inverses run in reverse order
before the records are checked. An inverse is the attribute `inv` that TorchRL's transforms have.
`invert=True` swaps the two: the callable itself runs before the write.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from shmrb.errors import SpecTypeError

Transform = Callable[[Any], Any]


class Transforms:
    """An ordered chain; empty, it costs nothing."""

    def __init__(self) -> None:
        self._links: list[tuple[Transform, bool]] = []

    def __len__(self) -> int:
        return len(self._links)

    def __iter__(self) -> Iterator[Transform]:
        return (transform for transform, _ in self._links)

    def __getitem__(self, place: int) -> Transform:
        return self._links[place][0]

    def insert(self, place: int, transform: Transform, invert: bool) -> None:
        """Puts a transform before the one at `place`."""
        check_transform(transform)
        self._links.insert(place, (transform, invert))

    @property
    def change_writes(self) -> bool:
        """Whether any of them has a say in what is written."""
        return any(_writing_step(*link) is not None for link in self._links)

    def after_reading(self, data: Any) -> Any:
        """What the user gets."""
        for transform, invert in self._links:
            step = getattr(transform, "inv", None) if invert else transform
            if step is not None:
                data = step(data)
        return data

    def before_writing(self, data: Any) -> Any:
        """What is written; None when a transform keeps it back for now."""
        for link in reversed(self._links):
            step = _writing_step(*link)
            if step is not None:
                data = step(data)
                if data is None:
                    return None
        return data


def check_transform(transform: Any) -> None:
    """Refuses what cannot be called.

    Raises:
        SpecTypeError.
    """
    if not callable(transform):
        raise SpecTypeError(
            f"transform must be a callable or a module, got {type(transform).__name__}."
        )


def _writing_step(transform: Transform, invert: bool) -> Transform | None:
    return transform if invert else getattr(transform, "inv", None)
