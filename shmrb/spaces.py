"""Reads fields off Gymnasium spaces; floor F1, imports Gymnasium only when asked about an
environment."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from shmrb.description import Path
from shmrb.dtypes import dtype_name
from shmrb.errors import SpecError
from shmrb.fields import PADDING_ADVICE, Field, key_path, show_path

# What to do about the spaces whose samples have no one shape or no names.
_ADVICE = {
    "Tuple": "Give its parts names: wrap the environment so that the space is a Dict.",
    "Sequence": PADDING_ADVICE,
    "Text": "Encode it as integers in a Box or MultiDiscrete space.",
    "Graph": PADDING_ADVICE,
    "OneOf": "Make it a Dict with every part and a Discrete that chooses.",
}


def spaces_of_env(env: Any) -> tuple[Any, Any]:
    """The observation and the action space of one environment (of each one in a vector)."""
    if isinstance(env, str):
        made = _gymnasium().make(env)
        try:
            return made.observation_space, made.action_space
        finally:
            made.close()
    if hasattr(env, "single_observation_space"):
        return env.single_observation_space, env.single_action_space
    if hasattr(env, "observation_space") and hasattr(env, "action_space"):
        return env.observation_space, env.action_space
    raise SpecError(
        f"expected a Gymnasium environment, a vector of them or an id, got {type(env).__name__}; "
        "other records are described by schema_like(record) or a dictionary."
    )


def fields_of_space(space: Any, path: Path) -> Iterator[Field]:
    """The fields that samples of `space` fill, under `path`."""
    spaces = _gymnasium().spaces
    if isinstance(space, spaces.Dict):
        if not space.spaces:
            raise SpecError(f"space at {show_path(path)}: the Dict holds no space.")
        for key, part in space.spaces.items():
            yield from fields_of_space(part, key_path((*path, *key_path(key))))
    elif isinstance(space, (spaces.Box, spaces.MultiDiscrete, spaces.MultiBinary)):
        yield Field(
            path, dtype_name(space.dtype, f"space at {show_path(path)}"), tuple(space.shape)
        )
    elif isinstance(space, spaces.Discrete):
        yield Field(path, "int64", ())
    else:
        name = type(space).__name__
        advice = _ADVICE.get(name, "Describe the record with schema_like(record) or a dictionary.")
        raise SpecError(
            f"space at {show_path(path)}: expected Box, Discrete, MultiDiscrete, MultiBinary or "
            f"Dict of Gymnasium 1.0 or newer, got {name}. {advice}"
        )


def _gymnasium() -> Any:
    try:
        import gymnasium
    except ImportError as error:
        raise SpecError(
            "describing an environment needs Gymnasium 1.0 or newer: pip install gymnasium."
        ) from error
    if int(gymnasium.__version__.split(".")[0]) < 1:
        raise SpecError(
            f"expected Gymnasium 1.0 or newer, found {gymnasium.__version__}: "
            "pip install --upgrade gymnasium."
        )
    return gymnasium
