"""Shards written by several processes of this machine."""

import concurrent.futures
import multiprocessing
import multiprocessing.connection
import os
import signal
import threading
from collections.abc import Callable, Sequence
from concurrent.futures.process import BrokenProcessPool

import cv2

from vit_jax.errors import Preempted
from vit_jax.prepare import shards


def run(jobs: Sequence[shards.Job], workers: int, done: Callable[[shards.Report], None]) -> None:
  """Writes shards.

  Args:
    jobs: the shards.
    workers: processes.
    done: called for each shard, when it is complete.

  Raises:
    Preempted: a process was killed.
  """
  # A fresh interpreter each: a copy of this one would have its locks without its threads.
  context = multiprocessing.get_context('spawn')
  with concurrent.futures.ProcessPoolExecutor(min(workers, len(jobs)), context, _start) as pool:
    futures = [pool.submit(shards.write, job) for job in jobs]
    try:
      for future in concurrent.futures.as_completed(futures):
        done(future.result())
    except BrokenProcessPool as error:
      raise Preempted('A process was killed, perhaps for want of memory (see --workers).') from error
    except BaseException:
      for process in multiprocessing.active_children():
        process.terminate()  # what it was writing is not needed
      raise


def _start() -> None:
  """In each process: it ends when the first one does, even if that is killed, and not by Ctrl-C itself."""
  signal.signal(signal.SIGINT, signal.SIG_IGN)
  cv2.setNumThreads(0)
  threading.Thread(target=_end_with, args=[multiprocessing.parent_process()], daemon=True).start()


def _end_with(parent: multiprocessing.process.BaseProcess) -> None:
  multiprocessing.connection.wait([parent.sentinel])
  os._exit(1)
