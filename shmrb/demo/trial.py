"""One run of the demo: starts everybody, watches, kills, and keeps the accounts."""

from __future__ import annotations

import time
from collections import deque
from dataclasses import dataclass
from typing import Any

import numpy as np

import shmrb
from shmrb.demo import recipe
from shmrb.demo.history import Evaluation, History, Kill, Point
from shmrb.demo.ledger import Ledger
from shmrb.demo.options import Options
from shmrb.demo.refresher import Refreshed
from shmrb.demo.screen import Screen
from shmrb.demo.stage import Broken, Child, Stage
from shmrb.errors import DaemonError
from shmrb.results import LaneInfo

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
        checked: records that learner and refresher drew and checked.
        torn: records that did not match their seals, drawn or audited.
        stale: drawn records that were overwritten while the learner worked on them.
        refreshed: what became of the memories that were written back; None: nobody did that.
        problem: what the buffer's own count says against the accounts; "" if nothing.
    """

    reached: bool
    seconds: float
    records: int
    checked: int
    torn: int
    stale: int
    problem: str
    refreshed: Refreshed | None = None


class Trial:
    """Runs once.

    Args:
        options: what was asked for.
        target: return to reach; nobody evaluates with --quick, and the run takes all its time.
        settings: what the buffer is created with.
        stage: where the processes run.
        screen: where progress is shown.
    """

    def __init__(
        self,
        options: Options,
        target: float,
        settings: dict[str, Any],
        stage: Stage,
        screen: Screen,
    ) -> None:
        self.history = History(options.job.is_prioritized)
        storage: shmrb.SharedStorage = settings["storage"]
        self._lane_capacity = storage.capacity // storage.lanes
        # If all went into one lane, records would be overwritten soonest.
        self.ledger = Ledger(settings["schema"], self._lane_capacity)
        self._options = options
        self._job = options.job
        self._target = target
        self._settings = settings
        self._stage = stage
        self._screen = screen
        self._started = time.monotonic()
        self._collectors: list[Child] = []
        self._learned: dict[str, int] = {}
        self._refreshed = Refreshed() if options.job.is_refreshed else None
        # Records that the refresher drew and checked, and the torn ones among them.
        self._checked = self._torn = 0
        self._returns: deque[float] = deque(maxlen=_EPISODES)
        self._parameters: shmrb.Parameters | None = None
        self._point_at = 0.0
        self._successor: Child | None = None
        self._is_daemon_back = True
        self._is_over = False
        kills = (
            [self._kill_collector] if options.quick else [self._kill_collector, self._kill_daemon]
        )
        self._due_kills = deque(zip((KILL_COLLECTOR_AT, KILL_DAEMON_AT), kills, strict=False))

    @property
    def _second(self) -> float:
        return time.monotonic() - self._started

    def run(self) -> Outcome:
        """Everything from the daemon's start to its end.

        Raises:
            Broken: a process ended by itself, did not come up, or did not end when asked.
            KeyboardInterrupt.
        """
        self._begin()
        while not self._is_over and self._second < self._options.seconds:
            self._look()
        return self._end()

    # ---- the beginning ---------------------------------------------------------------------------

    def _begin(self) -> None:
        self._daemon = self._stage.start("daemon", "shmrbd")
        while (client := self._connect(self._started)) is None:
            self._stage.pause(_LOOK_EVERY_S)
        self._client = client
        self._buffer = client.create(
            recipe.BUFFER,
            format="numpy",
            client_name="orchestrator",
            **self._settings,
        )
        self._learner = self._start("learner")
        self._refresher = self._start("refresher") if self._job.is_refreshed else None
        for _ in range(self._options.collectors):
            self._start_collector()
        quick = self._options.quick
        self._evaluation = None if quick else self._start("evaluation", str(EVALUATE_EVERY_S))

    def _start(self, role: str, *arguments: str, name: str = "") -> Child:
        """A child that runs the module of its role."""
        module = f"shmrb.demo.{role}"
        return self._stage.start(name or role, module, self._job.to_argument(), *arguments)

    def _connect(self, since: float) -> shmrb.Client | None:
        """A connection to the daemon, if it is up."""
        try:
            return shmrb.connect(self._stage.socket)
        except DaemonError as error:
            if time.monotonic() - since < _STARTUP_S:
                return None
            raise Broken(f"{self._daemon} did not come up: {error}{self._daemon.log()}") from None

    def _start_collector(self) -> Child:
        number = str(len(self._collectors))
        child = self._start("collector", number, name=f"collector {number}")
        self._collectors.append(child)
        return child

    # ---- watching --------------------------------------------------------------------------------

    def _look(self) -> None:
        """One round: reports, kills that are due, accounts, a point now and then."""
        self._stage.pause(_LOOK_EVERY_S)
        self._take_in_reports()
        if not self._is_daemon_back:
            self._look_for_daemon()
        count = self._buffer.write_count
        # A run that short may not come to so many records; then half its time decides.
        is_half_time = self._options.quick and self._second > self._options.seconds / 2
        if self._due_kills and (count >= self._due_kills[0][0] or (is_half_time and count)):
            self._due_kills.popleft()[1](count)
        if self.ledger.is_due(count):
            self._audit()
        if time.monotonic() >= self._point_at:
            self._point_at = time.monotonic() + _POINT_EVERY_S
            self.history.points.append(self._point())
            self._screen.show(self.history)

    def _take_in_reports(self) -> None:
        for number, collector in enumerate(self._collectors):
            for report in collector.reports():
                self.ledger.note(number, report["records"])
                self._returns.extend(report["returns"])
                if collector is self._successor:
                    self._successor = None
                    self._note_back()
        for report in self._learner.reports():
            self._learned = report
        for report in self._refresher.reports() if self._refresher else ():
            self._checked, self._torn = report["checked"], report["torn"]
            counts = {key: report[key] for key in ("updated", "stale", "rejected")}
            self._refreshed = Refreshed(**counts)
        for report in self._evaluation.reports() if self._evaluation else ():
            second = report["started"] - self._started
            self._note(Evaluation(second, report["version"], report["mean"]))

    def _note(self, evaluation: Evaluation) -> None:
        self.history.evaluations.append(evaluation)
        is_after_kills = not self._due_kills and all(
            kill.is_over_at(evaluation.second) for kill in self.history.kills
        )
        # A refresher is to meet everything that can become of an update.
        refreshed = self._refreshed
        is_shown = refreshed is None or refreshed.has_met_all
        self._is_over = is_after_kills and is_shown and evaluation.mean >= self._target

    def _point(self) -> Point:
        stats = self._buffer.statistics()
        returns = self._returns
        return Point(
            second=self._second,
            records=stats.write_count,
            batches=stats.counters["sample_calls"],
            lag=self._lag(stats.lanes),
            stale=self._learned.get("stale", 0),
            blocked=len(stats.blocked),
            attached=sum(client.alive for client in stats.clients),
            training_return=sum(returns) / len(returns) if returns else None,
        )

    def _lag(self, lanes: tuple[LaneInfo, ...]) -> float | None:
        """How far the policy of the newest records is behind, in versions."""
        if not self._learned:
            return None
        if self._parameters is None:
            self._parameters = shmrb.Parameters(
                recipe.POLICY,
                timeout=0.0,
                format="numpy",
                client_name="orchestrator",
                root=self._stage.root,
            )
        newest = recipe.CHUNK * self._options.collectors // len(lanes)
        slots = np.concatenate(
            [
                np.arange(max(lane.floor, lane.head - newest), lane.head) % self._lane_capacity
                + lane.lane * self._lane_capacity
                for lane in lanes
            ]
        )
        versions = self._buffer[slots][recipe.POLICY_VERSION]
        return float(self._parameters.version - versions.mean()) if len(versions) else None

    def _audit(self) -> None:
        count = self._buffer.write_count
        self._take_in_reports()
        records = self._buffer[:]
        self.ledger.audit(count, records, self._buffer.write_count)

    # ---- killing ---------------------------------------------------------------------------------

    def _kill_collector(self, count: int) -> None:
        victim = next(child for child in self._collectors if child in self._stage.running)
        self._kill(victim, count)
        self._successor = self._start_collector()

    def _kill_daemon(self, count: int) -> None:
        self._kill(self._daemon, count)
        self._daemon = self._stage.start("daemon", "shmrbd")
        self._is_daemon_back = False

    def _kill(self, child: Child, count: int) -> None:
        self._stage.kill(child)
        self.history.kills.append(Kill(child.name, self._second, count))
        self._screen.say(f"{count:,} records: killed {child}, started another")

    def _note_back(self) -> None:
        kill = self.history.kills[-1]
        kill.back_after = self._second - kill.second
        kill.meanwhile = self._buffer.write_count - kill.records

    def _look_for_daemon(self) -> None:
        """The new daemon is back when it answers and knows what the old one owned."""
        client = self._connect(self._started + self.history.kills[-1].second)
        if client is None:
            return
        pid = client.ping().pid
        known = [summary.name for summary in client.list()]
        if pid != self._daemon.pid or recipe.BUFFER not in known:
            raise Broken(
                f"expected {self._daemon} to answer and to have adopted {recipe.BUFFER}, pid {pid} "
                f"answered and knows {', '.join(known) or 'no buffer'}."
            )
        self._client = client
        self._is_daemon_back = True
        self._note_back()

    # ---- the end ---------------------------------------------------------------------------------

    def _end(self) -> Outcome:
        """Lets everybody finish, balances the accounts, drops the buffers, ends the daemon."""
        seconds = self._second
        # What an evaluation that is under way says from now on comes too late.
        self._evaluation = None
        # Whoever waits for the others, who may be gone before it, gets through.
        self._buffer.limiter.lift()
        others = [child for child in self._stage.running if child is not self._daemon]
        self._stage.finish(others, _END_S)
        self._audit()
        count = self._buffer.write_count
        killed = len(self._collectors) - self._options.collectors
        problem = self.ledger.check_count(count, killed)
        self._buffer.close()
        if self._parameters is not None:
            self._parameters.close()
        while not self._is_daemon_back:
            self._stage.pause(_LOOK_EVERY_S)
            self._look_for_daemon()
        for summary in self._client.list():
            self._client.drop(summary.name)
        self._client.close()
        self._stage.finish([self._daemon], _END_S)
        return Outcome(
            reached=self._is_over,
            seconds=seconds,
            records=count,
            checked=self._learned.get("checked", 0) + self._checked,
            torn=self._learned.get("torn", 0) + self._torn + self.ledger.torn,
            stale=self._learned.get("stale", 0),
            problem=problem,
            refreshed=self._refreshed,
        )
