"""Writes shards in several processes of this machine."""

import concurrent.futures
import multiprocessing
import multiprocessing.connection
import os
import signal
import threading
from collections.abc import Callable, Sequence
from concurrent.futures.process import BrokenProcessPool

import cv2

from vit_jax.foundation import signals
from vit_jax.foundation.errors import Preempted
from vit_jax.prepare import shards


def run(jobs: Sequence[shards.Job], workers: int, done: Callable[[shards.Report], None]) -> None:
  """Writes shards, at least one, and calls `done` for each that is complete; Preempted where a process was killed."""
  # A forked process would have the locks of this one but not the threads that release them.
  context = multiprocessing.get_context('spawn')
  with concurrent.futures.ProcessPoolExecutor(min(workers, len(jobs)), context, _start) as pool:
    try:
      with signals.postponed():
        futures = [pool.submit(shards.write, job) for job in jobs]  # starts the processes
      for future in concurrent.futures.as_completed(futures):
        done(future.result())
    except BrokenProcessPool as error:
      raise Preempted('A process was killed, perhaps for want of memory (see --workers).') from error
    except BaseException:
      for process in multiprocessing.active_children():
        process.terminate()  # what it is writing is not needed
      raise


def _start() -> None:
  """Prepares a worker: it leaves Ctrl-C to the parent, and ends with the parent even if that is killed."""
  signal.signal(signal.SIGINT, signal.SIG_IGN)
  cv2.setNumThreads(0)
  threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
  parent = multiprocessing.parent_process()
  assert parent is not None, 'runs in a worker only'
  multiprocessing.connection.wait([parent.sentinel])
  os._exit(1)
