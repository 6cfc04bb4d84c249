"""Where the parts of one step of an environment lie in a record; floor F1.

Two layouts. *Stored twice*: "next" holds the observation that followed, the reward and the end
flags, as `schema_from_env` makes it. *Stored once*: there is no "next"; every record has what was
seen at its time (observation, and the reward and end flags of the step that led there) and the
action taken from it. What came next is read from the following record, and each trajectory closes
with one record that only holds its final observation.
"""

from __future__ import annotations

from dataclasses import dataclass

from shmrb.boundaries import DONE_KEYS, is_end_flag
from shmrb.description import Path
from shmrb.errors import SpecError
from shmrb.fields import Field, show_path
from shmrb.schema import Schema

NEXT = "next"
OBSERVATION = "observation"
ACTION = "action"
REWARD = "reward"


@dataclass(frozen=True)
class StepLayout:
    """The parts of a step.

    Attributes:
        is_stored_once: what came next lies in the following record.
        now: positions of the fields that a batch shows as they are.
        after: positions of the fields that say what came next.
        reward: position of the reward of the step, None if there is none.
        flags: positions of the end flags by name, of those of `DONE_KEYS` that there are.
        shown: the schema of a batch: fields of `now`, then of `after`.
    """

    is_stored_once: bool
    now: tuple[int, ...]
    after: tuple[int, ...]
    reward: int | None
    flags: dict[str, int]
    shown: Schema

    @classmethod
    def of(cls, schema: Schema) -> StepLayout:
        """Finds the parts in a schema."""
        once = is_stored_once(schema)
        now, after = [], []
        for position, field in enumerate(schema.fields):
            first = field.path[0]
            from_following = once and first in (OBSERVATION, REWARD, *DONE_KEYS)
            if from_following or first == NEXT:
                after.append(position)
            if (not from_following and first != NEXT) or (once and first == OBSERVATION):
                now.append(position)
        above: Path = () if once else (NEXT,)
        places = {field.path: position for position, field in enumerate(schema.fields)}
        ends = {field.path for field in schema.fields if is_end_flag(field)}
        paths: dict[str, Path] = {key: (*above, key) for key in DONE_KEYS}
        flags = {key: places[path] for key, path in paths.items() if path in ends}
        shown = [schema.fields[i] for i in now]
        shown += [_below_next(schema.fields[i]) if once else schema.fields[i] for i in after]
        root = "dict" if once else schema.root
        return cls(
            once,
            tuple(now),
            tuple(after),
            places.get((*above, REWARD)),
            flags,
            Schema(tuple(shown), root),
        )

    def require_returns(self, schema: Schema) -> None:
        """Checks that rewards over several steps can be computed.

        Raises:
            SpecError: the reward, the end flags or what came next is missing.
        """
        missing = [] if self.reward is not None else [(NEXT, REWARD)]
        if not {"terminated", "done"} & self.flags.keys():
            missing.append((NEXT, "terminated"))
        if missing:
            raise SpecError(
                f"MultiStep: the schema has no {', '.join(map(show_path, missing))}. Use the "
                "fields of schema_from_env(env), or of schema_from_env(env, stored_once=True)."
            )
        assert self.reward is not None
        field = schema.fields[self.reward]
        if not field.dtype.startswith("float"):
            raise SpecError(
                "MultiStep: expected rewards of float16, float32 or float64, "
                f"{show_path(field.path)} is {field}."
            )


def is_stored_once(schema: Schema) -> bool:
    """Whether what came next lies in the following record: no "next" field, but an observation, an
    action, a reward and an end flag at the root."""
    if schema.root != "dict":
        return False
    first = {field.path[0] for field in schema.fields}
    has_end = any(field.path[0] in DONE_KEYS and is_end_flag(field) for field in schema.fields)
    has_step = {OBSERVATION, ACTION} <= first and (REWARD,) in schema.paths
    return NEXT not in first and has_step and has_end


def _below_next(field: Field) -> Field:
    return Field((NEXT, *field.path), field.dtype, field.shape)
