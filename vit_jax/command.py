"""What every command of ours has in common: flags, one-sentence errors, exit codes."""

import errno
import logging
import sys
from collections.abc import Callable, Sequence

from absl import flags
from absl import logging as absl_logging

from vit_jax.errors import EXIT_RESTART, EXIT_USER_ERROR, Preempted, UserError

_DEBUG = flags.DEFINE_bool('debug', False, 'Show the traceback of an error.')


def run(main: Callable[[], None], argv: Sequence[str] = sys.argv) -> int:
  """Parses the flags, calls `main`, and returns the process's exit code.

  0: done. 2: a wrong config or input, said in one sentence. 75: stopped after a save, start again.
  An error of ours, or any with --debug, keeps its traceback (exit code 1).
  """
  try:
    _parse(argv)
    absl_logging.set_verbosity(absl_logging.WARNING)
    main()
  except UserError as error:
    return _end(str(error), EXIT_USER_ERROR)
  except Preempted as stop:
    return _end(f'{stop} Start the same command again to go on.', EXIT_RESTART)
  except OSError as error:
    if error.errno not in (errno.ENOSPC, errno.EROFS, errno.EACCES, errno.EPERM, errno.EDQUOT):
      raise
    return _end(
      f'{error.strerror}: {error.filename or "the workdir"}; free or choose another place.', EXIT_USER_ERROR
    )
  return 0


def _parse(argv: Sequence[str]) -> None:
  try:
    rest = flags.FLAGS(list(argv))
    flags.FLAGS.validate_all_flags()
  except UserError:
    raise
  except Exception as error:  # ml_collections raises what it likes for a wrong config or override
    if '--debug' in argv:
      raise
    raise UserError(' '.join(str(error).split())) from error
  if len(rest) > 1:
    raise UserError(f'{rest[1]!r} is not a flag; options begin with --, values follow with =.')


def _end(text: str, code: int) -> int:
  if _DEBUG.present and _DEBUG.value:
    logging.exception(text)
  print(text, file=sys.stderr, flush=True)
  return code
