"""Works: calls that have been started, as torch has them."""

from __future__ import annotations

import atexit
import queue
import threading
import weakref
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from .. import _ferroccl
from .._ferroccl import Call
from ._tensors import Outputs


def seconds(timeout: timedelta | None) -> float | None:
    """A limit in seconds; `None` where torch has none, which is 0 or negative."""
    if timeout is None:
        return None
    limit = timeout.total_seconds()
    return limit if limit > 0 else None


class Work(dist.Work):
    """A call that has been started. ``wait`` returns when it has ended, and raises what it has failed with."""

    def __init__(
        self,
        call: Call | None,
        result: list[torch.Tensor],
        outputs: Outputs | None = None,
        what: str = "",
        source: int = -1,
    ) -> None:
        super().__init__()
        self._call = call
        self._tensors = result
        self._outputs = outputs
        self._what = what
        self._source = source
        self._error: BaseException | None = None
        self._lock = threading.Lock()

    # What torch calls.

    def wait(self, timeout: timedelta | None = None) -> bool:  # type: ignore[override]
        self._end(seconds(timeout))
        return True

    def is_completed(self) -> bool:
        if self._call is not None and not self._call.is_over():
            return False
        try:
            self._end(None)
        except _ferroccl.Error:
            pass  # `exception` has it
        return True

    def is_success(self) -> bool:
        return self.is_completed() and self._error is None

    def exception(self) -> BaseException | None:
        return self._error

    def synchronize(self) -> None:
        self._end(None)

    def result(self) -> list[torch.Tensor]:
        return self._tensors

    def source_rank(self) -> int:
        return self._source

    _source_rank = source_rank

    def get_future(self) -> torch.futures.Future[list[torch.Tensor]]:
        return _completer.future(self)

    # What it is made of.

    def _wait_call(self, timeout: float | None) -> bool:
        return self._call is None or self._call.wait(timeout)

    def _end(self, timeout: float | None) -> None:
        """Waits for the end, and copies what is to be copied then."""
        try:
            over = self._wait_call(timeout)
        except _ferroccl.Error as error:
            if self._error is None:
                self._error = error
            raise self._error from None
        if not over:
            raise _ferroccl.Error(f"timeout: {self._what} has not ended within {timeout} s")
        if self._outputs is not None:
            # Once, by whoever comes first; others wait for it.
            with self._lock:
                outputs, self._outputs = self._outputs, None
                if outputs is not None:
                    outputs.finish()


class _Completer:
    """The thread that completes futures, of those works that have been asked for one."""

    # How long it waits for a call before it looks whether the process ends.
    SLICE = 0.2

    def __init__(self) -> None:
        self._works: queue.SimpleQueue[tuple[Work, torch.futures.Future[Any]] | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()
        self._stopped = False

    def future(self, work: Work) -> torch.futures.Future[list[torch.Tensor]]:
        ended: torch.futures.Future[Any] = torch.futures.Future()

        def value(_: Any) -> list[torch.Tensor]:
            if work._error is not None:
                raise work._error
            return work._tensors

        # An error that is raised in `then` is the future's own for C++, too; that of `set_exception` is Python's alone.
        result = ended.then(value)
        if work._call is not None and not work._call.is_over() or type(work) is not Work:
            with self._lock:
                if self._thread is None and not self._stopped:
                    self._thread = threading.Thread(target=self._run, name="ferroccl-futures", daemon=True)
                    self._thread.start()
            self._works.put((work, ended))
        else:
            self._complete(work, ended)
        return result

    def _complete(self, work: Work, ended: torch.futures.Future[Any]) -> None:
        try:
            work._end(None)
        except BaseException as error:
            work._error = error
        ended.set_result(None)

    def _run(self) -> None:
        while (item := self._works.get()) is not None:
            work, ended = item
            try:
                while not work._wait_call(self.SLICE):
                    if self._stopped:
                        return
            except BaseException as error:
                work._error = error
                ended.set_result(None)
                continue
            self._complete(work, ended)

    def stop(self) -> None:
        self._stopped = True
        self._works.put(None)
        if self._thread is not None:
            self._thread.join(2)


_completer = _Completer()
# A thread that is within the library when the interpreter ends could not leave it.
atexit.register(_completer.stop)


class Pending:
    """The works of a group that copy when they have ended. Whatever reads a tensor in its own way comes after those."""

    def __init__(self) -> None:
        self._works: list[weakref.ref[Work]] = []
        self._last: Call | None = None

    def add(self, work: Work) -> None:
        self._last = work._call
        if work._outputs:
            self._works = [ref for ref in self._works if (old := ref()) is not None and old._outputs is not None]
            self._works.append(weakref.ref(work))

    def copied(self) -> None:
        """All copies have been made."""
        if not self._works:
            return
        works, self._works = self._works, []
        for ref in works:
            work = ref()
            if work is not None:
                work._end(None)

    def settle(self) -> None:
        """All calls have ended: a tensor may be read from here on."""
        self.copied()
        if self._last is not None:
            self._last.wait()


Start = Callable[[], Call]
