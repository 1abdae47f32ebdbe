"""C++ that aborts this process, held for some seconds in which another thread can say why."""

import ctypes
import faulthandler
import os
import signal
import sys


class HeldAborts:
  """Holds aborts (SIGABRT) for six seconds, in the thread that aborts; the other threads go on.

  No Python runs in that thread, whose memory or locks may be damaged: `faulthandler` writes its stack into a
  pipe, and then comes the handler that was there before, which is C's own `sleep`. It gets the signal's
  number as its argument, and that is 6.
  """

  def __init__(self):
    libc = ctypes.CDLL(None)
    self._signal, sleep = libc.signal, libc.sleep
    self._signal.argtypes, self._signal.restype = [ctypes.c_int, ctypes.c_void_p], ctypes.c_void_p
    self._enabled = faulthandler.is_enabled()
    faulthandler.disable()
    self._old = self._signal(signal.SIGABRT, ctypes.cast(sleep, ctypes.c_void_p))
    read, write = os.pipe()
    os.set_blocking(read, False)
    self._read, self._write = os.fdopen(read, 'rb', buffering=0), os.fdopen(write, 'wb', buffering=0)
    faulthandler.enable(self._write, all_threads=False)
    self._stack = b''

  def any(self) -> bool:
    """Has a thread aborted, so that this process ends within six seconds?"""
    self._stack += self._read.read() or b''
    return bool(self._stack)

  def explain(self) -> None:
    """Prints the stack of the thread that aborted, as faulthandler would have done."""
    sys.stderr.write(self._stack.decode(errors='replace'))
    sys.stderr.flush()

  def release(self) -> None:
    """Aborts are what they were before."""
    faulthandler.disable()
    self._signal(signal.SIGABRT, self._old)
    if self._enabled:
      faulthandler.enable()
    self._read.close()
    self._write.close()
