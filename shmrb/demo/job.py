"""What all processes of a run have to agree on."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass

# An onlooker only draws and loads no torch.
ONLOOKER = "onlooker"
DQN, SAC, RDQN = LEARNERS = ("dqn", "sac", "rdqn")
PRIORITIZED, UNIFORM = SAMPLERS = ("prioritized", "uniform")


@dataclass(frozen=True)
class Job:
    """One argument of every child process.

    Attributes:
        env: id of a Gymnasium environment.
        learner: the algorithm, or "onlooker".
        sampler: how the learner draws.
        hide_velocity: the agent sees positions and its last action only.
        memoryless: what a recurrent learner remembers is wiped out at every step.
    """

    env: str
    learner: str
    sampler: str = UNIFORM
    hide_velocity: bool = False
    memoryless: bool = False

    @property
    def is_prioritized(self) -> bool:
        """Whether records are drawn by how much there is to learn from them."""
        return self.sampler == PRIORITIZED

    @property
    def is_recurrent(self) -> bool:
        """Whether records carry what the agent remembered, and are drawn in sequences."""
        return self.learner == RDQN

    @property
    def is_refreshed(self) -> bool:
        """Whether somebody writes newer memories over the recorded ones."""
        return self.is_recurrent and not self.memoryless

    def to_argument(self) -> str:
        """The job as text."""
        return json.dumps(dataclasses.asdict(self))

    @classmethod
    def from_argument(cls, text: str) -> Job:
        """What `to_argument` made."""
        return cls(**json.loads(text))
