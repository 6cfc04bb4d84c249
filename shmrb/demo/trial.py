"""One run of the demo: starts everybody, watches, kills, and keeps the accounts."""

from __future__ import annotations

import contextlib
import select
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

import shmrb
from shmrb.demo import learner, recipe
from shmrb.demo.history import Evaluation, History, Kill, Point
from shmrb.demo.ledger import Ledger
from shmrb.demo.options import Options
from shmrb.demo.screen import Screen
from shmrb.demo.stage import Broken, Child, Stage
from shmrb.errors import DaemonError

KILL_COLLECTOR_AT, KILL_DAEMON_AT = 20_000, 40_000

EVALUATE_EVERY_S = 5.0
_LOOK_EVERY_S = 0.05
_POINT_EVERY_S = 0.5
# The training return is the mean of so many episodes.
_EPISODES = 20
# Interpreters start slowly on a busy machine.
_STARTUP_S = 60.0
_END_S = 20.0


@dataclass(frozen=True)
class Outcome:
    """How a run ended.

    Attributes:
        reached: whether the last evaluation was the one that ends the run, or there was none to
            wait for.
        seconds, records: how long it took, and how many records the buffer counts.
        checked: records that the learner drew and checked, and their stale ones.
        torn: records that did not match their seals, drawn or audited.
        stale: drawn records that were overwritten while the learner worked on them.
        problem: what the buffer's own count says against the accounts; "" if nothing.
    """

    reached: bool
    seconds: float
    records: int
    checked: int
    torn: int
    stale: int
    problem: str


class Trial:
    """Runs once.

    Args:
        options: what was asked for.
        target: return to reach; None: run until the time is over.
        schema: of the records.
        stage: where the processes run.
        screen: where progress is shown.
    """

    def __init__(
        self,
        options: Options,
        target: float | None,
        schema: shmrb.Schema,
        stage: Stage,
        screen: Screen,
    ) -> None:
        self.history = History()
        self.ledger = Ledger(schema, recipe.CAPACITY)
        self._options = options
        self._target = target
        self._schema = schema
        self._stage = stage
        self._screen = screen
        self._started = time.monotonic()
        self._collectors: dict[int, Child] = {}
        self._ended: list[Child] = []
        self._learned: dict[str, int] = {}
        self._returns: deque[float] = deque(maxlen=_EPISODES)
        self._parameters: shmrb.Parameters | None = None
        self._point_at = 0.0
        self._pending: dict[Child, Callable[[dict[str, Any]], None]] = {}
        self._killed_daemon: Kill | None = None
        self._reached = False
        due = [self._kill_collector] if options.quick else [self._kill_collector, self._kill_daemon]
        self._due_kills = deque(zip((KILL_COLLECTOR_AT, KILL_DAEMON_AT), due, strict=False))

    @property
    def _second(self) -> float:
        return time.monotonic() - self._started

    def run(self) -> Outcome:
        """Everything from the daemon's start to its end.

        Raises:
            Broken: a process ended by itself, did not come up, or did not end when asked.
        """
        self._begin()
        while not self._reached and self._second < self._options.seconds:
            self._look()
        return self._end()

    # ---- the beginning ---------------------------------------------------------------------------

    def _begin(self) -> None:
        self._daemon = self._stage.start("daemon", "shmrbd")
        self._client = self._connect_first()
        self._buffer = self._client.create(
            recipe.BUFFER,
            storage=shmrb.SharedStorage(recipe.CAPACITY),
            schema=self._schema,
            limiter=shmrb.RateLimiter(
                min_size=recipe.MIN_SIZE, samples_per_insert=recipe.SAMPLES_PER_INSERT
            ),
            batch_size=recipe.BATCH,
            format="numpy",
            client_name="orchestrator",
        )
        env = self._options.env
        kind = learner.ONLOOKER if self._options.quick else learner.DQN
        self._learner = self._stage.start("learner", "shmrb.demo.learner", env, kind)
        for _ in range(self._options.collectors):
            self._start_collector()
        if not self._options.quick:
            period = str(EVALUATE_EVERY_S)
            self._stage.start("evaluation", "shmrb.demo.evaluation", env, period)

    def _connect_first(self) -> shmrb.Client:
        deadline = time.monotonic() + _STARTUP_S
        while True:
            self._check_alive()
            try:
                return shmrb.connect(self._stage.socket)
            except DaemonError as error:
                if time.monotonic() >= deadline:
                    raise Broken(f"the daemon did not come up: {error}") from None
            time.sleep(_LOOK_EVERY_S)

    def _start_collector(self) -> Child:
        number = len(self._collectors)
        child = self._stage.start(
            f"collector {number}", "shmrb.demo.collector", self._options.env, str(number)
        )
        self._collectors[number] = child
        return child

    # ---- watching --------------------------------------------------------------------------------

    def _look(self) -> None:
        """One round: reports, deaths, kills that are due, accounts, a point now and then."""
        self._check_alive()
        alive = [child for child in self._stage.children if child not in self._ended]
        select.select(alive, [], [], _LOOK_EVERY_S)
        count = self._buffer.write_count
        self._take_in_reports()
        if self._killed_daemon is not None:
            self._look_for_daemon(self._killed_daemon)
        is_half_time = self._options.quick and self._second > self._options.seconds / 2
        if self._due_kills and (count >= self._due_kills[0][0] or is_half_time):
            self._due_kills.popleft()[1](count)
        if self.ledger.is_due(count):
            self._audit()
        if time.monotonic() >= self._point_at:
            self._point_at = time.monotonic() + _POINT_EVERY_S
            self.history.points.append(self._point())
            self._screen.show(self.history)

    def _check_alive(self) -> None:
        for child in self._stage.children:
            if child not in self._ended and child.exit_code is not None:
                raise Broken(
                    f"{child.name} (pid {child.pid}) ended by itself, exit code "
                    f"{child.exit_code}.\n{child.log()}"
                )

    def _take_in_reports(self) -> None:
        for child in self._stage.children:
            if child not in self._ended:
                self._take_in(child)

    def _take_in(self, child: Child) -> None:
        for report in child.reports():
            kind = report.pop("kind")
            if kind == "written":
                self._note_written(child, **report)
            elif kind == "learned":
                self._learned = report
            elif kind == "evaluated":
                self._note_evaluation(**report)

    def _note_written(self, child: Child, records: int, returns: list[float]) -> None:
        number = next(n for n, collector in self._collectors.items() if collector is child)
        self.ledger.note(number, records)
        self._returns.extend(returns)
        if child in self._pending:
            self._pending.pop(child)({})

    def _note_evaluation(self, started: float, version: int, mean: float) -> None:
        second = started - self._started
        self.history.evaluations.append(Evaluation(second, version, mean))
        recovered = all(
            kill.back_after is not None and second >= kill.second + kill.back_after
            for kill in self.history.kills
        )
        if not self._due_kills and recovered and self._target is not None:
            self._reached = mean >= self._target

    def _point(self) -> Point:
        stats = self._buffer.statistics()
        returns = self._returns
        return Point(
            second=self._second,
            records=stats.write_count,
            batches=stats.counters["sample_calls"],
            lag=self._lag(stats.write_count),
            stale=self._learned.get("stale", 0),
            blocked=len(stats.blocked),
            attached=sum(client.alive for client in stats.clients),
            training_return=sum(returns) / len(returns) if returns else None,
        )

    def _lag(self, count: int) -> float | None:
        """How far the policy of the newest records is behind, in versions."""
        if not self._learned or count == 0:
            return None
        if self._parameters is None:
            self._parameters = shmrb.Parameters(
                recipe.POLICY,
                timeout=0.0,
                format="numpy",
                client_name="orchestrator",
                root=self._stage.root,
            )
        newest = recipe.CHUNK * self._options.collectors
        slots = np.arange(max(0, count - newest), count) % recipe.CAPACITY
        versions = self._buffer[slots][recipe.POLICY_VERSION]
        return float(self._parameters.version - versions.mean()) if len(versions) else None

    def _audit(self) -> None:
        count = self._buffer.write_count
        self._take_in_reports()
        records = self._buffer[:]
        self.ledger.audit(count, records, self._buffer.write_count)

    # ---- killing ---------------------------------------------------------------------------------

    def _kill_collector(self, count: int) -> None:
        number, child = next((n, c) for n, c in self._collectors.items() if c not in self._ended)
        self._kill(child)
        kill = Kill(f"collector {number}", self._second, count)
        self.history.kills.append(kill)
        successor = self._start_collector()
        self._screen.say(
            f"{count:,} records: killed {child.name} (pid {child.pid}), started {successor.name}"
        )
        self._pending[successor] = partial(self._note_back, kill)

    def _kill_daemon(self, count: int) -> None:
        killed = self._daemon
        self._kill(killed)
        kill = Kill("daemon", self._second, count)
        self.history.kills.append(kill)
        self._daemon = self._stage.start("daemon", "shmrbd")
        self._killed_daemon = kill
        self._screen.say(
            f"{count:,} records: killed the daemon (pid {killed.pid}), started another"
        )

    def _kill(self, child: Child) -> None:
        child.kill()
        self._take_in(child)
        self._ended.append(child)

    def _note_back(self, kill: Kill, _report: dict[str, Any]) -> None:
        kill.back_after = self._second - kill.second
        kill.meanwhile = self._buffer.write_count - kill.records

    def _look_for_daemon(self, kill: Kill) -> None:
        """The new daemon is back when it answers and knows what the old one owned."""
        with contextlib.suppress(DaemonError):
            client = shmrb.connect(self._stage.socket)
            info = client.ping()
            known = {summary.name: summary for summary in client.list()}
            if info.pid != self._daemon.pid or recipe.BUFFER not in known:
                raise Broken(
                    f"expected the new daemon (pid {self._daemon.pid}) to have adopted "
                    f"{recipe.BUFFER}, pid {info.pid} answered and knows {sorted(known)}."
                )
            self._client = client
            self._killed_daemon = None
            self._note_back(kill, {})
            return
        if self._second - kill.second > kill.second + _STARTUP_S:
            raise Broken(f"the new daemon did not come up.\n{self._daemon.log()}")

    # ---- the end ---------------------------------------------------------------------------------

    def _end(self) -> Outcome:
        """Lets everybody finish, balances the accounts, drops the buffers, ends the daemon."""
        seconds = self._second
        # Whoever waits for the others, who may be gone before it, gets through.
        self._buffer.limiter.lift()
        others = [c for c in self._stage.children if c not in self._ended and c is not self._daemon]
        for child in others:
            child.ask_to_end()
        self._wait_for(others)
        self._audit()
        count = self._buffer.write_count
        killed = sum(kill.what.startswith("collector") for kill in self.history.kills)
        problem = self.ledger.check_count(count, killed)
        self._buffer.close()
        if self._parameters is not None:
            self._parameters.close()
        for name in (recipe.BUFFER, recipe.POLICY):
            self._client.drop(name)
        self._client.close()
        self._daemon.ask_to_end()
        self._wait_for([self._daemon])
        return Outcome(
            reached=self._reached,
            seconds=seconds,
            records=count,
            checked=self._learned.get("checked", 0),
            torn=self._learned.get("torn", 0) + self.ledger.torn,
            stale=self._learned.get("stale", 0),
            problem=problem,
        )

    def _wait_for(self, children: list[Child]) -> None:
        """Waits until they have ended, taking in their reports, which would fill the pipes."""
        deadline = time.monotonic() + _END_S
        for child in children:
            while child.exit_code is None:
                self._take_in(child)
                if time.monotonic() > deadline:
                    raise Broken(f"{child.name} (pid {child.pid}) did not end in {_END_S:g} s.")
                time.sleep(_LOOK_EVERY_S)
            self._take_in(child)
            self._ended.append(child)
            if child.exit_code != 0:
                raise Broken(
                    f"{child.name} (pid {child.pid}) ended with {child.exit_code}, expected 0.\n"
                    f"{child.log()}"
                )
