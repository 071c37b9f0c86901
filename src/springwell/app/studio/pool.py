"""Jobs, one at a time per model, each model in a process of its own.

A job waits in the queue of its model's process. What it tells goes to the page that asked; the last message of every slot is
kept, so that a page that lost its connection, or was loaded again, sees the job as it is now. A job that is cancelled ends at
its next step; a process that does not listen is ended.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from springwell.app.studio import desk
from springwell.app.studio.tasks import FILES, TASKS
from springwell.app.studio.wire import pack
from springwell.errors import UserError

MAX_WORKERS = 6
MAX_WAITING = 16
MAX_KEPT = 24
# Seconds that a cancelled job has to end by itself.
PATIENCE = 5.0
Arrays = dict[str, np.ndarray]


@dataclass
class Job:
    """One piece of work.

    Attributes:
        number: What the page calls it.
        page: The page that asked.
        task: A row of TASKS.
        model: The model it is about.
        values: Its options.
        arrays: The arrays that came with them.
        status: waiting, running, done, failed or cancelled.
        kept: The last message of every slot.
        result: What files can be made of.
        ended: Is set with the fields and arrays of the end.
    """

    number: str
    page: str
    task: str
    model: str
    values: dict[str, Any]
    arrays: Arrays = field(default_factory=dict)
    status: str = "waiting"
    kept: dict[str, bytes] = field(default_factory=dict)
    result: Arrays = field(default_factory=dict)
    ended: asyncio.Future[tuple[dict[str, Any], Arrays]] | None = None

    @property
    def over(self) -> bool:
        return self.status in ("done", "failed", "cancelled")


class Settings(NamedTuple):
    """What every process needs to know.

    Attributes:
        runs: The folder of runs.
        device: Where to compute.
        threads: CPU threads of each; None for torch's own choice.
    """

    runs: str
    device: str
    threads: int | None


class Pool:
    """The processes and the jobs.

    Args:
        settings: What every process needs to know.
        send: Sends a message to a page, if it is there.
    """

    def __init__(self, settings: Settings, send: Callable[[str, bytes], None]):
        self.settings, self.send = settings, send
        self.jobs: dict[tuple[str, str], Job] = {}
        self._workers: dict[str, _Worker] = {}
        self._count = 0
        # A forked process has torch already; where there is no forking, it is imported anew.
        method = "spawn" if sys.platform == "win32" else "forkserver"
        self.context: Any = multiprocessing.get_context(method)
        if method == "forkserver":
            self.context.set_forkserver_preload(["springwell.app.studio.preload"])

    def start(self, job: Job) -> None:
        """Puts a job into the queue of its model. Raises UserError if it cannot be."""
        if job.task not in TASKS:
            raise UserError(f"task {job.task!r}: unknown")
        key = (job.page, job.number)
        if key in self.jobs:
            raise UserError(f"job {job.number!r}: exists")
        worker = self._worker(job.model)
        if len(worker.queue) >= MAX_WAITING:
            raise UserError(f"{job.model}: {MAX_WAITING} jobs are waiting; wait for them or cancel some")
        self.jobs[key] = job
        worker.add(job)

    async def call(self, task: str, values: dict[str, Any], arrays: Arrays | None = None) -> tuple[dict[str, Any], Arrays]:
        """Has the process that reads files do something. Raises UserError for what it refuses."""
        self._count += 1
        job = Job(str(self._count), "", task, FILES, values, arrays or {})
        job.ended = asyncio.get_running_loop().create_future()
        self.start(job)
        return await job.ended

    def cancel(self, page: str, number: str) -> None:
        """Ends a job of a page, if it is not over."""
        job = self.jobs.get((page, number))
        if job is not None and not job.over:
            self._workers[job.model].cancel(job)

    def again(self, page: str) -> list[bytes]:
        """What a page has to hear to show its jobs as they are now."""
        messages = []
        for job in list(self.jobs.values()):
            if job.page == page and TASKS[job.task].kept:
                about = {"task": job.task, "model": job.model, "options": job.values}
                messages.append(pack({"event": "again", "job": job.number, "status": job.status, **about}))
                messages += job.kept.values()
        return messages

    def tell(self, job: Job, fields: dict[str, Any], arrays: Arrays | None = None) -> None:
        """Sends a message on a job to its page, and keeps it where the job is kept."""
        if job.ended is not None:
            return
        try:
            message = pack({"job": job.number, **fields}, arrays)
        except ValueError:
            fields = {"event": "failed", "text": "its numbers are not finite"}
            message = pack({"job": job.number, **fields})
        if TASKS[job.task].kept:
            job.kept[fields.get("slot", fields["event"])] = message
        self.send(job.page, message)

    def end(self, job: Job, status: str, fields: dict[str, Any], arrays: Arrays) -> None:
        """Notes how a job ended, and tells its page."""
        job.status, job.arrays = status, {}
        if job.ended is not None:
            del self.jobs[job.page, job.number]
            if job.ended.done():
                return
            if status == "done":
                job.ended.set_result((fields, arrays))
            else:
                job.ended.set_exception(UserError(fields.get("text", status)))
            return
        self.tell(job, {"event": status, **fields}, arrays)
        if not TASKS[job.task].kept:
            del self.jobs[job.page, job.number]
        over = [key for key, other in self.jobs.items() if other.over]
        for key in over[: max(0, len(over) - MAX_KEPT)]:
            del self.jobs[key]

    def _worker(self, name: str) -> _Worker:
        worker = self._workers.get(name)
        if worker is None or not worker.process.is_alive():
            idle = [w for w in self._workers.values() if not w.busy and w.name != FILES]
            if len(self._workers) >= MAX_WORKERS and not idle:
                raise UserError(f"{name}: {MAX_WORKERS} models are at work; wait for one of them")
            if len(self._workers) >= MAX_WORKERS:
                self._workers.pop(min(idle, key=lambda w: w.used).name).close()
            worker = self._workers[name] = _Worker(self, name)
        return worker

    def close(self) -> None:
        """Ends all processes."""
        for worker in self._workers.values():
            worker.close()
        self._workers.clear()


class _Worker:
    """A process and its queue."""

    def __init__(self, pool: Pool, name: str):
        self.pool, self.name, self.used = pool, name, time.monotonic()
        self.queue: deque[Job] = deque()
        self.current: Job | None = None
        self.loop = asyncio.get_running_loop()
        context = pool.context
        self.connection, theirs = context.Pipe()
        self.cancelling, heard = context.Pipe()
        self.number, self.cancelled = 0, False
        self.process = context.Process(
            target=desk.work, args=(theirs, heard, *pool.settings), daemon=True, name=f"springwell studio: {name}"
        )
        self.process.start()
        theirs.close()
        heard.close()
        threading.Thread(target=self._listen, daemon=True).start()

    @property
    def busy(self) -> bool:
        return self.current is not None or bool(self.queue)

    def add(self, job: Job) -> None:
        self.queue.append(job)
        if self.current is None:
            self._next()
        elif TASKS[job.task].kept:
            self.pool.tell(job, {"event": "waiting", "slot": "progress", "before": len(self.queue)})

    def _next(self) -> None:
        self.used = time.monotonic()
        self.current = self.queue.popleft() if self.queue else None
        if self.current is not None:
            job = self.current
            job.status = "running"
            self.number, self.cancelled = self.number + 1, False
            self.connection.send((self.number, job.task, {**job.values, "model": job.model}, job.arrays))

    def cancel(self, job: Job) -> None:
        if job is not self.current:
            self.queue.remove(job)
            self.pool.end(job, "cancelled", {}, {})
            return
        self.cancelled = True
        self.cancelling.send(self.number)
        self.loop.call_later(PATIENCE, self._insist, job)

    def _insist(self, job: Job) -> None:
        # Training saves itself when it stops, which may take longer.
        if self.current is job and job.task != "train":
            self.process.kill()

    def _listen(self) -> None:
        """Runs in a thread of its own, because a pipe cannot be awaited everywhere."""
        while True:
            try:
                message = self.connection.recv()
            except (EOFError, OSError):
                message = None
            try:
                self.loop.call_soon_threadsafe(self._hear, message)
            except RuntimeError:  # The server has ended.
                return
            if message is None:
                return

    def _hear(self, message: tuple[str, dict[str, Any], Arrays] | None) -> None:
        job = self.current
        if message is None:
            self._lost()
        elif job is None:
            return
        elif message[0] == "event":
            self.pool.tell(job, *message[1:])
        elif message[0] == "result":
            job.result = message[2]
        else:
            self.pool.end(job, *message)
            self._next()

    def _lost(self) -> None:
        """The process ended. Its job is over, and those that wait get another process."""
        if self.pool._workers.get(self.name) is self:
            del self.pool._workers[self.name]
        job, self.current = self.current, None
        waiting, self.queue = list(self.queue), deque()
        if job is not None:
            gone = {"text": "the process that worked on it ended; it may have run out of memory. Ask for less, or try again"}
            self.pool.end(job, *(("cancelled", {}) if self.cancelled else ("failed", gone)), {})
        for other in waiting:
            self.pool._worker(self.name).add(other)

    def close(self) -> None:
        """Ends the process; the thread that listens then hears the end of the pipe."""
        self.process.kill()
