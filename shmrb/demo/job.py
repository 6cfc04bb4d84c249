"""What all processes of a run have to agree on."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass

DQN, ONLOOKER = "dqn", "onlooker"
PRIORITIZED, UNIFORM = SAMPLERS = ("prioritized", "uniform")


@dataclass(frozen=True)
class Job:
    """One argument of every child process.

    Attributes:
        env: id of a Gymnasium environment.
        learner: the algorithm; "onlooker" only draws and loads no torch.
        sampler: how the learner draws.
    """

    env: str
    learner: str
    sampler: str

    @property
    def is_prioritized(self) -> bool:
        """Whether records are drawn by how much there is to learn from them."""
        return self.sampler == PRIORITIZED

    def to_argument(self) -> str:
        """The job as text."""
        return json.dumps(dataclasses.asdict(self))

    @classmethod
    def from_argument(cls, text: str) -> Job:
        """What `to_argument` made."""
        return cls(**json.loads(text))
