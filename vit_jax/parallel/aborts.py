"""Time to say why this process ends when C++ code in it aborts."""

import ctypes
import faulthandler
import os
import signal
import threading
from typing import NoReturn

_C = ctypes.CDLL(None)
_Handler = ctypes.CFUNCTYPE(None, ctypes.c_int)
_SIZE_OF_SIGACTION = 256  # bytes, more than any system's `struct sigaction` has


_ending: list[object] = []  # handlers that C knows by their addresses only


def end_at_abort(sentence: str, code: int) -> None:
  """Has C++ code that aborts end this process with a sentence on stderr and an exit code."""
  line = f'\n{sentence}\n'.encode()

  def end(number: int) -> NoReturn:
    os.write(2, line)
    os._exit(code)

  _ending.append(_Handler(end))
  _C.signal(signal.SIGABRT, _ending[-1])


class DelayedAbort:
  """Makes a thread that aborts (SIGABRT) wait, so that another thread can end the process with a reason.

  C's `abort` calls the handler of SIGABRT in the thread that aborts, and kills the process when the handler
  returns. The handler here waits for `go_on`, at most `seconds`; then the abort takes its usual course, with
  the stacks that faulthandler prints.

  The handler is Python code that C calls through ctypes. `signal.signal` cannot do this, because its C
  handler returns at once and runs the Python code later. JAX's own callback for a lost process cannot do it
  either: `jax.distributed.initialize` has no argument for it, and in jaxlib 0.10 the callback itself aborts
  (std::bad_cast). With `jax_enable_recoverability` JAX still aborts when process 0 is lost.
  """

  def __init__(self, seconds: float):
    self._seconds = seconds
    self.aborting = False  # whether a thread is waiting in its abort
    self._go_on = threading.Event()
    faulthandler.enable()
    self._old_action = ctypes.create_string_buffer(_SIZE_OF_SIGACTION)
    _C.sigaction(signal.SIGABRT, None, self._old_action)
    self._handler = _Handler(self._wait)  # kept here: C knows its address only
    _C.signal(signal.SIGABRT, self._handler)

  def go_on(self) -> None:
    """Lets the waiting thread abort now."""
    self._go_on.set()

  def remove(self) -> None:
    """Restores the handler of SIGABRT that was there before."""
    _C.sigaction(signal.SIGABRT, self._old_action, None)

  def _wait(self, number: int) -> None:
    self.aborting = True
    self._go_on.wait(self._seconds)
    self.remove()
    signal.raise_signal(number)  # arrives when this handler has returned
