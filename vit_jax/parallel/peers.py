"""The other processes of a run: one that is lost ends this one, which is then to be started again."""

import threading
import time

import jax
import orbax.checkpoint as ocp

from vit_jax.errors import Preempted, UserError, end_to_restart
from vit_jax.parallel.aborts import HeldAborts

_PLACE = 'vit_jax/peers/'  # in the key-value store: the number of each process, and _SENTENCE
_SENTENCE = 'sentence'  # of the one that noticed first: all end with the same
_LEFT = 'left'  # in place of a number: that process's run is over
_MOST_SECONDS_BETWEEN_BEATS = 2.0
_TICK_SECONDS = 0.2
# Together with a computation of all processes that failed, or an abort, so much silence is a loss.
_SUSPICIOUS_SECONDS = 10.0
# An abort in which the store stays silent for so long is JAX's own for the loss of a process. It is less
# than the time for which an abort is held, and more than the time between two beats.
_ABORT_SECONDS = 4.0


class Peers:
  """Ends this process with one sentence and exit code 75 when another one of the run is lost.

      with Peers(distributed.heartbeat_seconds()):
        train

  Each process counts up a number in JAX's key-value store, which process 0 serves, and reads those of the
  others. One whose number stands still for `limit` seconds is lost; so is process 0 where the store does not
  answer for so long. When this process fails (on CPU and GPU the connections to one that is lost break, which
  is now a JaxRuntimeError, now a ValueError), ten seconds of silence are enough; where no process is silent
  the error goes its way.

  JAX by itself aborts the process, after a page of C++ frames, when process 0 is gone and, later than
  `limit`, when another is: that abort is held until the sentence is said.

  A single process has nobody to watch: nothing happens.
  """

  def __init__(self, limit: float):
    """`limit`: seconds."""
    self._silence = limit  # that is a loss; less once something has failed
    self._limit = limit
    self._every = min(limit / 5, _MOST_SECONDS_BETWEEN_BEATS)
    self._over = threading.Event()
    self._threads: list[threading.Thread] = []

  def __enter__(self) -> 'Peers':
    if jax.process_count() == 1:
      return self
    now = time.monotonic()
    self._store = ocp.multihost.get_jax_distributed_client()
    self._heard = {str(index): ('', now) for index in range(jax.process_count())}
    self._answered = now
    self._sentence = ''
    self._aborts = HeldAborts()
    self._threads = [
      threading.Thread(target=self._beat, name='peers-beat', daemon=True),
      threading.Thread(target=self._watch, name='peers-watch', daemon=True),
    ]
    for thread in self._threads:
      thread.start()
    return self

  def __exit__(self, kind: type | None, error: BaseException | None, _: object) -> None:
    if not self._threads:
      return
    if isinstance(error, Exception) and not isinstance(error, UserError | OSError | Preempted):
      self._silence = min(self._limit, _SUSPICIOUS_SECONDS)
      time.sleep(self._silence + 2 * self._every + 1)  # the watch ends the process if one is missing
    self._over.set()
    for thread in self._threads:
      thread.join(timeout=self._every)  # a store that hangs is no reason to wait
    if kind is None or issubclass(kind, Preempted):
      self._write(str(jax.process_index()), _LEFT)
    # What failed leaves no word, so that the others end too, should they wait for this one.
    self._aborts.release()

  def _beat(self) -> None:
    """Writes this process's number and reads those of all, again and again."""
    number = 0
    while not self._over.wait(self._every if number else 0):
      number += 1
      if not self._write(str(jax.process_index()), str(number)):
        continue
      try:
        values = dict(self._store.key_value_dir_get(_PLACE))
      except jax.errors.JaxRuntimeError:
        continue
      now = time.monotonic()
      self._answered = now
      for key, value in values.items():
        name = key.rpartition('/')[2]
        if name == _SENTENCE:
          self._sentence = value
        elif self._heard[name][0] != value:
          self._heard[name] = (value, now)

  def _write(self, name: str, value: str) -> bool:
    try:
      self._store.key_value_set(_PLACE + name, value, allow_overwrite=True)
    except jax.errors.JaxRuntimeError:  # process 0 is gone, or busy
      return False
    return True

  def _watch(self) -> None:
    aborted = None
    while not self._over.wait(_TICK_SECONDS):
      now = time.monotonic()
      if aborted is None and self._aborts.any():
        aborted = now
      if self._sentence:
        end_to_restart(self._sentence)
      if aborted is not None and self._answered > aborted:
        self._aborts.explain()  # of another cause: the store answers still
        return
      if aborted is not None and now - aborted > _ABORT_SECONDS:
        self._silence = min(self._limit, _SUSPICIOUS_SECONDS)
        self._end(self._silent() or ['0'] * (jax.process_index() > 0))
      if now - self._answered > self._silence:
        self._end(['0'])
      if lost := self._silent():
        self._end(lost)

  def _silent(self) -> list[str]:
    """The processes that, when the store last answered, had not been heard of for too long."""
    return [
      name
      for name, (value, since) in self._heard.items()
      if value != _LEFT and self._answered - since > self._silence
    ]

  def _end(self, lost: list[str]) -> None:
    names = ', '.join(lost)
    one = f'Process {names} was' if lost else 'Another process was'
    who = f'Processes {names} were' if len(lost) > 1 else one
    sentence = (
      f'{who} lost: nothing is heard of it any more, its own output may say why; start the same command '
      f'again on all hosts to go on from the last checkpoint.'
    )
    if lost != ['0']:
      # By this word the others end with the same sentence; process 0, which serves it, is the last to go.
      threading.Thread(target=self._write, args=(_SENTENCE, sentence), daemon=True).start()
      time.sleep(3 * self._every if jax.process_index() == 0 else self._every / 2)
    end_to_restart(sentence)
