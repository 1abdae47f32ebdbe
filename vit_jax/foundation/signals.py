"""Signals that end a command, also while its main thread is busy or hangs.

Python runs a signal handler in the main thread, and only when that thread is back in Python code: not during
a long compilation, a collective that waits for a lost process, or the opening of a file that never opens. It
can also be lost: a `KeyboardInterrupt` that is raised inside a callback of C++ code is printed and ignored.
`Listener` therefore reacts to signals in a thread of its own. Where nothing is to be saved or cleaned up, SIGTERM
needs no listener: its default action ends the process at once.
"""

import contextlib
import os
import select
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from types import FrameType
from typing import NoReturn, Self

_SECONDS_FOR_OUTPUT = 0.5
_SECONDS_BETWEEN_LOOKS = 0.5

Handler = Callable[[int, FrameType | None], object]


class Listener:
  """Calls `react(number)` in a thread of its own as soon as one of the signals `numbers` arrives.

      with Listener([signal.SIGINT], react):
        ...

  Inside the `with` block the signals have no other effect; after it they have the handlers they had before.
  Enter and leave it in the main thread. In nested blocks only the innermost listener hears the signals.
  `start` is for a listener that stays until the process ends.
  """

  def __init__(self, numbers: Sequence[int], react: Callable[[int], None], handler: Handler | None = None):
    """`react` is called in the listener's thread; `handler` in the main thread as well, if that can."""
    self._numbers, self._react = numbers, react
    # A Python handler must be installed for a signal's number to reach the pipe. It is a function of this
    # listener's own, by which the listener knows that no other one is inside it.
    self._handler: Handler = lambda number, frame: handler(number, frame) if handler else None

  def start(self) -> None:
    """Begins to listen; without a `with` block, it goes on until the process ends."""
    # Python's C handler writes the number of each signal into this pipe, whatever the main thread is doing.
    self._read_end, self._write_end = os.pipe()
    os.set_blocking(self._write_end, False)
    self._thread = threading.Thread(target=self._listen, name='signals', daemon=True)
    self._thread.start()
    self._old_wakeup = signal.set_wakeup_fd(self._write_end, warn_on_full_buffer=False)
    self._old_handlers = {number: signal.signal(number, self._handler) for number in self._numbers}

  def __enter__(self) -> Self:
    self.start()
    return self

  def __exit__(self, *_: object) -> None:
    for number, handler in self._old_handlers.items():
      signal.signal(number, handler)
    signal.set_wakeup_fd(self._old_wakeup)
    os.close(self._write_end)  # the thread reads the end of the file and returns
    self._thread.join()
    os.close(self._read_end)

  def _listen(self) -> None:
    signal.pthread_sigmask(signal.SIG_BLOCK, self._numbers)  # for `_untaken`
    pipe = select.poll()
    pipe.register(self._read_end, select.POLLIN)
    pending: set[int] = set()
    while True:
      if not pipe.poll(_SECONDS_BETWEEN_LOOKS * 1000):
        pending = self._untaken(pending)
        continue
      byte = os.read(self._read_end, 1)
      if not byte:
        return
      if byte[0] in self._numbers:
        self._react(byte[0])

  def _untaken(self, before: set[int]) -> set[int]:
    """Reacts to the signals that were pending at the last look and still are: the main thread does not take them.

    The kernel gives a signal to the main thread if that does not block it, and asks no other thread when the
    main thread then sleeps in a system call that only the end of the process interrupts. Returns those pending now.
    """
    if sys.platform != 'linux':
      return set()
    mine = {number for number in self._numbers if signal.getsignal(number) is self._handler}
    pending = mine & signal.sigpending()
    for number in pending & before:
      if signal.sigtimedwait([number], 0):
        self._react(number)
    return pending


def end_at_interrupt(sentence: str = 'Interrupted.') -> Listener:
  """A listener that ends the process at Ctrl-C (SIGINT), at once and anywhere, with `sentence` on stderr and code 130.

  No `KeyboardInterrupt` is raised, so no `finally` block runs. A process that was started with SIGINT
  ignored, as in the background of a script, goes on ignoring it.

  SIGTERM is left to its default action, except in the first process of a container: there the kernel ignores
  signals that have no handler, so SIGTERM ends that process as Ctrl-C does (143 in place of 130).
  """
  numbers = []
  if signal.getsignal(signal.SIGINT) != signal.SIG_IGN:
    numbers.append(signal.SIGINT)
  if os.getpid() == 1:
    numbers.append(signal.SIGTERM)

  return Listener(numbers, lambda number: end_process(sentence, 128 + number))


@contextlib.contextmanager
def raise_at_interrupt(seconds: float = 5.0) -> Iterator[None]:
  """Inside, Ctrl-C and SIGTERM raise KeyboardInterrupt, for code that has to clean up, such as a pool of processes.

  A main thread that has not left the block within `seconds` of the signal hangs: the process ends with exit
  code 130 (SIGTERM: 143).
  """
  left = threading.Event()

  def end_if_it_hangs(number: int) -> None:
    if not left.wait(seconds):
      end_process('Interrupted.', 128 + number)

  before = signal.getsignal(signal.SIGINT)
  with Listener([signal.SIGINT, signal.SIGTERM], end_if_it_hangs, signal.default_int_handler):
    if before == signal.SIG_IGN:
      signal.signal(signal.SIGINT, before)
    try:
      yield
    finally:
      left.set()


@contextlib.contextmanager
def postponed() -> Iterator[None]:
  """Inside, Ctrl-C and SIGTERM wait for the end of the block, for what must not be left half done.

  Such as the start of a process, which would complain that its parent told it only a part. Other threads than the
  main one are never interrupted.
  """
  if threading.current_thread() is not threading.main_thread():
    yield
    return
  arrived: list[int] = []
  heard = [number for number in (signal.SIGINT, signal.SIGTERM) if signal.getsignal(number) != signal.SIG_IGN]
  before = {number: signal.signal(number, lambda number, _: arrived.append(number)) for number in heard}
  try:
    yield
  finally:
    for number, handler in before.items():
      signal.signal(number, handler)
  for number in arrived:
    signal.raise_signal(number)


def end_process(sentence: str, code: int) -> NoReturn:
  """Prints `sentence` to stderr and ends the process with exit code `code`; any thread may call it.

  A thread that hangs, or output that nobody reads, does not delay the end by more than half a second.
  """

  def write() -> None:
    start = '\n' if sys.stderr.isatty() else ''  # the terminal's line may hold a progress bar, or ^C
    print(f'{start}{sentence}', file=sys.stderr, flush=True)
    sys.stdout.flush()

  writer = threading.Thread(target=write, daemon=True)
  try:
    writer.start()
  except RuntimeError:  # Python is shutting down and starts no more threads
    write()
  else:
    writer.join(_SECONDS_FOR_OUTPUT)
  os._exit(code)
