"""A pool of worker processes that plays the calls of many episodes.

One thread for each process takes calls from a common queue, one at a time. A *slot* is an environment object inside a
worker; an episode gets one when it first has to be simulated. In a deterministic environment a slot is only a place
where some trail ends: when none is free the one that was idle longest is taken over, and an episode that finds its slot
gone, because it was taken or because its worker died, plays its trail again elsewhere. In any other environment a slot
belongs to its episode from reset to close, and when it is lost the episode has failed.
"""

from __future__ import annotations

import itertools
import logging
import threading
from collections import Counter, deque
from concurrent.futures import Future
from pathlib import Path
from typing import Any

from agentcredit.envs.base import EnvFailure, EnvSpec, StepResult
from agentcredit.envs.process import RemoteError, WorkerCommand, WorkerLost, WorkerProcess
from agentcredit.envs.slots import Job, Slot, Track, check_same
from agentcredit.envs.trail import Trail
from agentcredit.envs.wire import result_from, spec_from

log = logging.getLogger(__name__)

UNHURRIED = 10.0
"""Start, task lists and experts may take this many times a call's limit: they import, generate and solve."""


class Pool:
    """Worker processes of one environment.

    Args:
        command: how a worker is started.
        processes: how many there are at most; each is started when it first gets a call.
        instances: live environment objects over all processes at most; 0: as many as the environment allows.
        call_timeout: seconds that a reset or a step may take.
        retries: how often a failed call is tried again.
        log_path: file for the workers' stderr.
    """

    def __init__(
        self,
        command: WorkerCommand,
        *,
        processes: int = 1,
        instances: int = 0,
        call_timeout: float = 60.0,
        retries: int = 2,
        log_path: Path | None = None,
    ) -> None:
        self._command = command
        self._limit = instances
        self._timeout = call_timeout
        self._retries = retries
        self._log_path = log_path
        n = min(processes, instances) if instances else processes
        self._processes: list[WorkerProcess | None] = [None] * n
        self._slots = [Slot(process, 0) for process in range(n)]
        self._queue: deque[Job] = deque()
        self._live: set[Track] = set()  # kept for environments that are not deterministic
        self._lock = threading.RLock()  # guards everything below and every slot and track
        self._wakes = [threading.Condition(self._lock) for _ in range(n)]
        self._threads: list[threading.Thread] = []
        self._clock = itertools.count(1)
        self._closing = False
        self.counts: Counter[str] = Counter()
        self.spec: EnvSpec | None = None
        self.source = ""

    def start(self) -> EnvSpec:
        """The environment's spec, once a worker is up. Raises EnvFailure."""
        if self.spec is None:
            self._submit(Job(lambda process, slot: None)).result()
        assert self.spec is not None
        return self.spec

    @property
    def capacity(self) -> int:
        """Slots over all processes, known once a worker is up."""
        return len(self._slots)

    def play(self, track: Track, action: str | None) -> Future[StepResult]:
        """One step of an episode, or its reset (None). The future raises EnvFailure when the retries are used up.

        Raises:
            RuntimeError: there are more live episodes than slots in an environment whose slots cannot be taken over; the
                reset would wait for a close that may itself wait for the reset.
        """
        if action is None and self.spec is not None and not self.spec.deterministic:
            with self._lock:
                if track not in self._live and len(self._live) >= self.capacity:
                    raise RuntimeError(
                        f"{self.spec.name} is not deterministic, so at most {self.capacity} episodes (processes times "
                        "instances) may be live: close one before another begins"
                    )
                self._live.add(track)
        names = track.trail.task_id if action is None else ""
        return self._submit(Job(lambda process, slot: self._play(process, slot, track, action), track, names))

    def tasks(self, split: str) -> Future[Any]:
        """A split's tasks in plain form. The future raises EnvFailure, or RemoteError for an unknown split."""
        return self._call("tasks", split, split=split)

    def expert(self, task_id: str) -> Future[Any]:
        """The expert's episode in plain form. The future raises EnvFailure, or RemoteError for an unknown task."""
        return self._call("expert", task_id, task=task_id)

    def release(self, track: Track) -> None:
        """The episode is over; its slot is free once its last call is done."""
        with self._lock:
            track.closed = True
            self._live.discard(track)
            self._give_back(track)

    def close(self) -> None:
        """Ends every worker. Calls that wait are cancelled; one under way is broken off and raises EnvFailure."""
        with self._lock:
            waiting, self._closing = list(self._queue), True
            self._queue.clear()
            busy = {slot.process for slot in self._slots if slot.busy}
            broken = [process for n in busy if (process := self._processes[n]) is not None]
            self._wake()
        for job in waiting:
            job.future.cancel()
        for process in broken:
            process.kill()
        for thread in self._threads:
            thread.join()

    # --- the queue ---------------------------------------------------------------------------------------------------

    def _call(self, op: str, names: str, **arguments: Any) -> Future[Any]:
        """An operation that needs an environment object but belongs to no episode."""

        def work(process: WorkerProcess, slot: Slot) -> Any:
            slot.held = None
            return process.call(op, self._timeout * UNHURRIED, instance=slot.instance, **arguments)

        return self._submit(Job(work, names=names))

    def _submit(self, job: Job) -> Future[Any]:
        with self._lock:
            if self._closing:
                raise RuntimeError("the pool is closed")
            if not self._threads:
                self._threads = [
                    threading.Thread(target=self._serve, args=(n,), name=f"{self._command.name}-{n}", daemon=True)
                    for n in range(len(self._processes))
                ]
                for thread in self._threads:
                    thread.start()
            if job.track is not None:
                job.track.calls += 1
            self._queue.append(job)
            slot = job.track.slot if job.track is not None else None
            self._wake(None if slot is None else slot.process)
        return job.future

    def _wake(self, number: int | None = None) -> None:
        """Lets one process's thread look at the queue, or all."""
        for wake in self._wakes if number is None else [self._wakes[number]]:
            wake.notify()

    # --- one thread for each process -------------------------------------------------------------------------------

    def _serve(self, number: int) -> None:
        while True:
            with self._lock:
                while not self._closing and (taken := self._take(number)) is None:
                    self._wakes[number].wait()
                if self._closing:
                    break
                job, slot = taken  # pyright: ignore[reportPossiblyUnboundVariable]
                slot.busy = True
            self._run(job, slot)
        process = self._processes[number]
        if process is not None:
            process.close()

    def _run(self, job: Job, slot: Slot) -> None:
        result, failure = None, None
        try:
            if job.track is not None and job.track.lost:
                raise EnvFailure("env_error", f"task {job.track.trail.task_id!r}: the worker that played it was lost")
            process = self._processes[slot.process] or self._begin(slot.process)
            result = job.work(process, slot)
        except Exception as error:  # whatever it is, the thread goes on and the caller hears of it
            failure = error
            self._contain(job, slot, error)
        with self._lock:
            slot.busy = False
            slot.used = next(self._clock)
            again = failure is not None and self._worth_retrying(job, failure)
            if again:
                self._queue.appendleft(job)
            elif job.track is not None:
                job.track.calls -= 1
                self._give_back(job.track)
            if self._queue:
                self._wake()
        if again:
            return
        if failure is None:
            job.future.set_result(result)
        else:
            job.future.set_exception(self._final(job, failure))

    def _begin(self, number: int) -> WorkerProcess:
        process = WorkerProcess(self._command, number, self._log_path)
        with self._lock:
            self._processes[number] = process
            closing = self._closing
        if closing:
            process.kill()
        try:
            hello = process.start(max(self._timeout * UNHURRIED, 60.0))
        except RemoteError as error:  # an import or a constructor that fails will fail again
            process.close()
            self._processes[number] = None
            raise EnvFailure("env_error", f"worker {process.label} cannot start: {error}", error.detail) from error
        with self._lock:
            if self.spec is None:
                self.spec, self.source = spec_from(hello["spec"]), hello["source"]
                allowed = len(self._processes) * max(self.spec.instances_per_process, 1)
                total = min(allowed, self._limit) if self._limit else allowed
                n = len(self._processes)
                self._slots += [Slot(index % n, index // n) for index in range(n, total)]
                self._wake()
        return process

    def _take(self, number: int) -> tuple[Job, Slot] | None:
        """The call that this process should do next, with its slot. The lock is held."""
        for job in self._queue:
            if job.track is not None and job.track.lost:
                self._queue.remove(job)
                return job, Slot(number, -1)  # it only has to be told
            slot = job.track.slot if job.track is not None else None
            if slot is not None and slot.process == number:
                return self._assign(job, slot)
        for job in self._queue:
            if job.track is not None and job.track.slot is not None:
                continue  # another process has its state
            slot = self._free_slot(number, job.track)
            return None if slot is None else self._assign(job, slot)
        return None

    def _assign(self, job: Job, slot: Slot) -> tuple[Job, Slot]:
        self._queue.remove(job)
        if slot.owner is not None and slot.owner is not job.track:
            slot.owner.slot = None
        slot.owner = job.track
        if job.track is not None:
            job.track.slot = slot
        return job, slot

    def _free_slot(self, number: int, track: Track | None) -> Slot | None:
        """A slot of this process without an owner, the furthest on the track's way; else one to take over.

        An environment object that is there already is used before another is made.
        """
        free = [slot for slot in self._slots if slot.process == number and slot.owner is None]
        if free:
            return max(free, key=lambda slot: (slot.place_of(track), slot.used > 0, -slot.used))
        if self.spec is None or not self.spec.deterministic or any(slot.owner is None for slot in self._slots):
            return None
        wanted = {id(job.track) for job in self._queue}
        idle = [slot for slot in self._slots if slot.process == number and not slot.busy]
        return min(idle, key=lambda slot: (id(slot.owner) in wanted, slot.used), default=None)

    def _give_back(self, track: Track) -> None:
        if track.closed and not track.calls and track.slot is not None:
            track.slot.owner = track.slot = None
            self._wake()

    # --- playing and failing -----------------------------------------------------------------------------------------

    def _play(self, process: WorkerProcess, slot: Slot, track: Track, action: str | None) -> StepResult:
        if action is None:
            result = self._reset(process, slot, track.trail)
            self._count("resets_simulated")
            return result
        self._bring(process, slot, track.trail)
        result = self._step(process, slot, action)
        self._count("steps_simulated")
        return result

    def _bring(self, process: WorkerProcess, slot: Slot, trail: Trail) -> None:
        """Puts the slot where the trail ends."""
        place = slot.held.place_in(trail) if slot.held else None
        if place is None:
            self._count("resets_replayed")
            check_same(self._reset(process, slot, trail), trail, 0)
            place = 0
        for index in range(place, len(trail.actions)):
            self._count("steps_replayed")
            check_same(self._step(process, slot, trail.actions[index]), trail, index + 1)

    def _reset(self, process: WorkerProcess, slot: Slot, trail: Trail) -> StepResult:
        slot.held = None
        held = Trail(trail.task_id, trail.seed, trail.erase_loops)
        answer = process.call("reset", self._timeout, instance=slot.instance, task=trail.task_id, seed=trail.seed)
        held.start(result_from(answer))
        slot.held = held
        return held.results[-1]

    def _step(self, process: WorkerProcess, slot: Slot, action: str) -> StepResult:
        held, slot.held = slot.held, None  # until the answer is there, nobody knows what the slot holds
        assert held is not None
        result = result_from(process.call("step", self._timeout, instance=slot.instance, action=action))
        held.push(action, result)
        slot.held = held
        return result

    def _contain(self, job: Job, slot: Slot, error: Exception) -> None:
        """Drops what a failure has made unsure: the worker, or only the environment object that raised."""
        if isinstance(error, EnvFailure) or job.asked_for_unknown(error):
            return
        job.failures += 1
        log.warning("%s%s", error, f"; see {self._log_path}" if self._log_path else "")
        if isinstance(error, WorkerLost):
            self._count("timeouts" if error.kind == "env_timeout" else "deaths")
            self._forget(slot.process)
        elif isinstance(error, RemoteError) and job.failures == 1:
            self._count("exceptions")
            self._renew(slot)
        else:  # a new environment object did not help, or the answer made no sense
            self._count("exceptions")
            self._forget(slot.process)

    def _worth_retrying(self, job: Job, error: Exception) -> bool:
        if isinstance(error, EnvFailure) or job.asked_for_unknown(error) or self._closing:
            return False
        return job.failures <= self._retries and not (job.track is not None and job.track.lost)

    def _final(self, job: Job, error: Exception) -> Exception:
        """What the caller gets: EnvFailure, or the RemoteError that says that there is no such task or split."""
        if job.asked_for_unknown(error):
            return error
        self._count("failures")
        if isinstance(error, EnvFailure):
            return error
        detail = error.detail if isinstance(error, (WorkerLost, RemoteError)) else ""
        kind = error.kind if isinstance(error, WorkerLost) else "env_error"
        if self._closing:
            return EnvFailure(kind, "the pool was closed during the call", detail)
        tried = f" (tried {job.failures} times)" if job.failures > 1 else ""
        where = f"; its whole stderr is in {self._log_path}" if self._log_path else ""
        return EnvFailure(kind, f"{error}{tried}{where}:\n{detail.strip()}".rstrip("\n:"), detail)

    def _forget(self, number: int) -> None:
        """Ends a process, and with it what its slots held. Its next call starts a new one."""
        process = self._processes[number]
        if process is not None:
            process.close(grace=0.0)
            self._count("restarts")
        with self._lock:
            self._processes[number] = None
            for slot in self._slots:
                if slot.process == number:
                    self._lose(slot)

    def _renew(self, slot: Slot) -> None:
        """A new environment object in a worker that is otherwise well."""
        process = self._processes[slot.process]
        if process is None:
            return
        try:
            process.call("close", self._timeout, instance=slot.instance)
        except (WorkerLost, RemoteError):
            self._forget(slot.process)
        else:
            with self._lock:
                self._lose(slot)

    def _lose(self, slot: Slot) -> None:
        slot.held = None
        if slot.owner is not None:
            replayable = self.spec is None or self.spec.deterministic or not slot.owner.trail.results
            slot.owner.lost = not replayable
            if slot.owner.lost:
                self._live.discard(slot.owner)
            slot.owner.slot = slot.owner = None

    def _count(self, name: str) -> None:
        with self._lock:
            self.counts[name] += 1
