"""Watches the other processes of a run: when one is lost or fails, this one ends too.

After a loss it is to be started again (exit code 75); after a failure, which a person has to mend, it is not: it ends
with the exit code and the sentence of the process that failed.
"""

import json
import threading
import time
from types import TracebackType
from typing import NoReturn

import jax
import orbax.checkpoint as ocp

from vit_jax.foundation import error_sentences, signals
from vit_jax.foundation.errors import EXIT_RESTART, EXIT_USER_ERROR, Preempted, UserError, end_to_restart
from vit_jax.parallel.aborts import DelayedAbort

# Keys in JAX's key-value store. Below _DIRECTORY each process has its count under its own number, and
# _SENTENCE is what the process that noticed a loss first has written: all end with the same sentence. _FAILURE is
# what a process that failed has written, as JSON: [exit code, sentence].
_DIRECTORY = 'vit_jax/peers/'
_SENTENCE = 'sentence'
_FAILURE = 'failure'
_LEFT = 'left'  # in place of a count: this process ends, having finished its run or read why it is over

_MAX_SECONDS_BETWEEN_BEATS = 2.0
_SECONDS_BETWEEN_LOOKS = 0.2
# After a failed collective, or during an abort, a process that is silent for this long counts as lost.
_SUSPICIOUS_SECONDS = 10.0
# How long an abort waits for its explanation, and how long the store must be silent during an abort for
# process 0 to count as lost. The store is asked every _MAX_SECONDS_BETWEEN_BEATS, so a healthy one answers in
# between.
_ABORT_SECONDS = 15.0
_SILENCE_IN_ABORT_SECONDS = 4.0
# How long a process goes on after another one has failed: often it fails too, by the same error, and says so itself.
_SECONDS_TO_FAIL_TOO = 2.0
# How long process 0, without which the others abort, waits for them to leave.
_SECONDS_TO_LEAVE = 10.0


class Peers:
  """Ends this process with one sentence and exit code 75 when another process of the run is lost.

      with Peers(distributed.heartbeat_seconds()):
        train

  Each process counts upwards in JAX's key-value store, which process 0 serves, and reads the counts of the
  others. A process is lost when its count has not changed for `limit` seconds; process 0 is also lost when
  the store has not answered for that long. Ten seconds are enough after an error in this process: on CPU and
  GPU, the loss of a process breaks its connections, so that collectives fail here (with a JaxRuntimeError or
  a ValueError). If no process is silent, the error is raised as usual.

  Without this class, JAX would abort the process with a page of C++ frames: at once when process 0 is lost,
  and later than `limit` when another one is. Such an abort is delayed until the sentence is printed.

  A process that leaves by an error tells the others, which end with its exit code and sentence. Otherwise they would
  take it for lost, and be started again and again for an error that only a person can mend.

  With a single process, this class does nothing.
  """

  def __init__(self, limit: float):
    """`limit`: seconds of silence after which a process counts as lost."""
    self._limit = limit
    self._silence = limit  # the limit at this moment; shorter once something has failed
    self._beat_seconds = min(limit / 5, _MAX_SECONDS_BETWEEN_BEATS)
    self._over = threading.Event()
    self._watching: threading.Thread | None = None

  def __enter__(self) -> 'Peers':
    if jax.process_count() == 1:
      return self
    now = time.monotonic()
    self._store = ocp.multihost.get_jax_distributed_client()
    # For each process: its last count, and when that was first seen.
    self._counts = {str(index): ('', now) for index in range(jax.process_count())}
    self._answered = now  # when the store last answered
    self._sentence = ''
    self._failure = ''  # what a process that failed has written
    self._failed_at = 0.0  # when this one first saw that
    self._abort = DelayedAbort(_ABORT_SECONDS)
    self._beating = threading.Thread(target=self._beat, name='peers-beat', daemon=True)
    self._watching = threading.Thread(target=self._watch, name='peers-watch', daemon=True)
    self._beating.start()
    self._watching.start()
    return self

  def __exit__(
    self,
    kind: type[BaseException] | None,
    error: BaseException | None,
    traceback: TracebackType | None,
  ) -> None:
    if self._watching is None:
      return
    if isinstance(error, Exception) and not isinstance(error, UserError | OSError | Preempted):
      # Perhaps a lost process is the cause: then `_watch` ends this process during the sleep.
      self._silence = min(self._limit, _SUSPICIOUS_SECONDS)
      time.sleep(self._silence + 2 * self._beat_seconds + 1)
    self._stop_beating()
    # Where it has found a reason to end this process, it does so now, perhaps when the others have left.
    self._watching.join(timeout=2 * _SECONDS_TO_LEAVE)
    if error is None or isinstance(error, Preempted):
      self._write(str(jax.process_index()), _LEFT)
    # A process that failed says why before it leaves: the others, which may be waiting for it, end as well.
    elif isinstance(error, Exception):
      self._tell_failure(error)
    self._abort.remove()

  def _tell_failure(self, error: Exception) -> None:
    """Tells the others why this process ends, unless starting the same command again may help."""
    code, sentence = _end_of(error)
    if code != EXIT_RESTART:
      text = json.dumps([code, f'Process {jax.process_index()} failed: {sentence}'])
      self._write_in_time(_FAILURE, text)
      self._leave()

  def _end(self, sentence: str, code: int = EXIT_RESTART) -> NoReturn:
    """Ends this process by a sentence that the others can read in the store."""
    self._stop_beating()
    self._leave()
    signals.end_process(f'\n{sentence}', code)  # a line of its own: Gloo may be within one

  def _leave(self) -> None:
    """Says that this process ends. Process 0 serves the store, so it waits until the others have said so."""
    self._write_in_time(str(jax.process_index()), _LEFT)
    end = time.monotonic() + _SECONDS_TO_LEAVE
    while jax.process_index() == 0 and time.monotonic() < end:
      self._read_counts()
      silent = self._silent_processes()
      if all(count == _LEFT or name in silent for name, (count, _) in self._counts.items()):
        return
      time.sleep(_SECONDS_BETWEEN_LOOKS)

  def _stop_beating(self) -> None:
    self._over.set()
    self._beating.join(timeout=self._beat_seconds)  # not longer: the store may hang

  def _beat(self) -> None:
    """Writes this process's count and reads the counts of all, until the run is over."""
    count = 0
    while True:
      count += 1
      if self._write(str(jax.process_index()), str(count)):
        self._read_counts()
      if self._over.wait(self._beat_seconds):
        return

  def _read_counts(self) -> None:
    try:
      values = dict(self._store.key_value_dir_get(_DIRECTORY))
    except jax.errors.JaxRuntimeError:
      return
    now = time.monotonic()
    self._answered = now
    for key, value in values.items():
      name = key.rpartition('/')[2]
      if name == _SENTENCE:
        self._sentence = value
      elif name == _FAILURE:
        self._failure, self._failed_at = value, self._failed_at or now
      elif self._counts[name][0] != value:
        self._counts[name] = (value, now)

  def _write(self, name: str, value: str) -> bool:
    """Writes a value into the store; False where process 0, which serves it, is gone or busy."""
    try:
      self._store.key_value_set(_DIRECTORY + name, value, allow_overwrite=True)
    except jax.errors.JaxRuntimeError:
      return False
    return True

  def _write_in_time(self, name: str, value: str) -> None:
    """Writes a value into the store, which may hang: then this gives up."""
    writer = threading.Thread(target=self._write, args=(name, value), daemon=True)
    writer.start()
    writer.join(timeout=self._beat_seconds)

  def _watch(self) -> None:
    """Ends this process when another one is lost."""
    aborting_since = None
    while not self._over.wait(_SECONDS_BETWEEN_LOOKS):
      now = time.monotonic()
      if self._sentence:
        self._end(self._sentence)
      if self._failure:
        if self._abort.aborting or now - self._failed_at > _SECONDS_TO_FAIL_TOO:
          code, sentence = json.loads(self._failure)
          self._end(sentence, code)
        continue  # what is silent now has failed
      if aborting_since is None and self._abort.aborting:
        aborting_since = now
      if aborting_since is not None:
        if self._answered > aborting_since:
          self._abort.go_on()  # process 0 is there, so the abort has another cause
          return
        if now - aborting_since > _SILENCE_IN_ABORT_SECONDS:
          self._silence = min(self._limit, _SUSPICIOUS_SECONDS)
          self._end_because_of(self._silent_processes() or (['0'] if jax.process_index() > 0 else []))
      if now - self._answered > self._silence:
        self._end_because_of(['0'])
      silent = self._silent_processes()
      if silent:
        self._end_because_of(silent)

  def _silent_processes(self) -> list[str]:
    """The processes whose counts had not changed for too long when the store last answered."""
    return [
      name
      for name, (count, since) in self._counts.items()
      if count != _LEFT and self._answered - since > self._silence
    ]

  def _end_because_of(self, lost: list[str]) -> NoReturn:
    if len(lost) > 1:
      who = f'Processes {", ".join(lost)} were'
    elif lost:
      who = f'Process {lost[0]} was'
    else:
      who = 'Another process was'
    sentence = (
      f'{who} lost: nothing is heard of it any more, its own output may say why; start the same command '
      f'again on all hosts to go on from the last checkpoint.'
    )
    if lost == ['0']:  # and the store with it
      end_to_restart(sentence)
    self._write_in_time(_SENTENCE, sentence)  # the others read it, and end with it
    self._end(sentence)


def _end_of(error: Exception) -> tuple[int, str]:
  """The exit code in which an error ends a command, and what the other processes say of it."""
  if isinstance(error, UserError):
    return error.exit_code, str(error)
  text = error_sentences.of(error)
  if text:
    return EXIT_USER_ERROR, text
  return 1, f'{type(error).__name__}, as its own output says.'
