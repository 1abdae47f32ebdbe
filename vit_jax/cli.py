"""What every command of ours has in common: flags, one-sentence errors, exit codes."""

import os
import re
import sys
import traceback
from collections.abc import Callable, Sequence

from absl import flags
from absl import logging as absl_logging
from ml_collections import config_flags

from vit_jax import config as config_lib
from vit_jax import files
from vit_jax.config import Config
from vit_jax.errors import EXIT_RESTART, EXIT_USER_ERROR, Preempted, UserError

_DEBUG = flags.DEFINE_bool('debug', False, 'Show the traceback of an error.')

def run(main: Callable[..., None], argv: Sequence[str] = sys.argv, *, positional: bool = False) -> None:
  """Parses the flags, calls `main`, and ends the process.

  Args:
    main: without arguments, or, where `positional`, with the list of those that are no flags.
    argv: the command line.
    positional: whether there may be arguments that are no flags.

  Exit code 0: done. 2: a wrong config or input, said in one sentence on stderr. 75: stopped after a save,
  start again. 1: an error of ours, with its traceback (--debug shows that of the others too).
  """
  code = _code_of(main, argv, positional)
  sys.stdout.flush()
  sys.stderr.flush()
  if code in (1, EXIT_USER_ERROR):
    # Not sys.exit: of several processes, one that fails alone would wait at its exit for the others, which
    # wait for it; and threads that were writing to a full disk would complain once more.
    os._exit(code)
  sys.exit(code)


def _code_of(main: Callable[..., None], argv: Sequence[str], positional: bool) -> int:
  try:
    arguments = _parse(argv)
    if arguments and not positional:
      raise UserError(f'{arguments[0]!r} is not a flag; options begin with --, values follow with =.')
    absl_logging.set_verbosity(absl_logging.WARNING)
    if positional:
      main(arguments)
    else:
      main()
  except UserError as error:
    return _say(str(error), EXIT_USER_ERROR)
  except Preempted as stop:
    return _say(f'{stop} Start the same command again to go on.', EXIT_RESTART)
  except BrokenPipeError:  # of a reader such as `head`, that has seen enough
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 0
  except OSError as error:
    place = error.filename or 'the workdir'
    if error.errno in files.DISK_FULL:
      return _say(f'The disk is full: {place} cannot be written; free some space there.', EXIT_USER_ERROR)
    if error.errno in files.UNWRITABLE:
      text = f'{place} cannot be written ({error.strerror}); choose a place that can.'
      return _say(text, EXIT_USER_ERROR)
    traceback.print_exc()
    return 1
  except Exception:
    traceback.print_exc()
    return 1
  return 0


def define_config() -> flags.FlagHolder:
  """The flag --config of a command."""
  return config_flags.DEFINE_config_file(
    'config', None, 'A file of configs/, with options as --config.section.option=value.'
  )


def config_of(holder: flags.FlagHolder) -> Config:
  """The validated config of a flag that `config_flags.DEFINE_config_file` defined.

  Raises:
    UserError: no such file, or options that are wrong.
  """
  try:
    values = holder.value.to_dict()
  except OSError as error:  # ml_collections keeps the reason for the first look at the config
    name = config_flags.get_config_filename(flags.FLAGS[holder.name])
    raise UserError(f'There is no file {name}; --config names one, such as configs/quickstart.py.') from error
  return config_lib.from_config_dict(values)


def _parse(argv: Sequence[str]) -> list[str]:
  """Parses the flags; the arguments that are none."""
  try:
    return flags.FLAGS(list(argv))[1:]
  except UserError:
    raise
  except Exception as error:  # ml_collections raises what it likes for a wrong config or override
    if '--debug' in argv:
      raise
    text = ' '.join(str(error).split())
    near = re.search(r'Did you mean "(\w+)" instead of "(\w+)"', text)
    if near:
      text = f'There is no option {near[2]!r}; did you mean {near[1]!r}?'
    elif isinstance(error, KeyError | AttributeError):
      name = str(error.args[0]).strip('"\'')
      text = f'There is no option {name!r}; vit_jax/config.py has them all.'
    raise UserError(text) from error


def _say(text: str, code: int) -> int:
  if _DEBUG.present and _DEBUG.value:
    traceback.print_exc()
  print(text, file=sys.stderr)
  return code
