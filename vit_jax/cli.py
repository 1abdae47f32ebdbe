"""What all commands share: flags, --help, one-sentence errors, exit codes, and the command `vit_jax`."""

import os
import re
import runpy
import sys
import textwrap
import traceback
from collections.abc import Callable, Sequence
from typing import Any

from absl import flags
from absl import logging as absl_logging
from ml_collections import config_flags

from vit_jax import files, signals
from vit_jax.errors import EXIT_RESTART, EXIT_USER_ERROR, Preempted, UserError

# Command -> (module, what it does).
COMMANDS = {
  'train': ('vit_jax.main', 'trains, resumes or evaluates a model by a config'),
  'predict': ('vit_jax.predict', 'classifies images with any checkpoint'),
  'convert': ('vit_jax.convert', 'converts a checkpoint into another format'),
  'prepare': ('vit_jax.prepare', 'prepares images for fast reading'),
  'transfer': ('vit_jax.transfer', 'makes the table of a checkpoint: fine-tuning, VTAB, few-shot probes'),
  'compare': ('vit_jax.compare', 'puts runs side by side'),
  'visualize': ('vit_jax.visualize', 'draws what a model sees'),
  'plan': ('vit_jax.plan', 'compiles a run for a machine that is not here: memory, time, core-days'),
  'contact_sheet': ('vit_jax.contact_sheet', 'draws training images under each level of augmentation'),
}

_HELP = ('--help', '-h', '-help', '--helpfull', '--helpshort', '-helpfull', '-helpshort')
_DEBUG = flags.DEFINE_bool('debug', False, 'Show the traceback of an error.')


def run(main: Callable[..., None], argv: Sequence[str] | None = None, *, positional: bool = False) -> None:
  """Parses the flags, calls `main`, and ends the process.

  Args:
    main: without arguments, or, where `positional`, with the list of those that are no flags.
    argv: the command line; None: this process's.
    positional: whether there may be arguments that are no flags.

  Exit code 0: done. 2: a wrong config or input, said in one sentence on stderr. 75: stopped after a save,
  start again. 130: interrupted by Ctrl-C. 1: an error of ours, with its traceback (--debug shows that of the
  others too).
  """
  with signals.end_at_interrupt():
    code = _exit_code(main, sys.argv if argv is None else argv, positional)
  sys.stdout.flush()
  sys.stderr.flush()
  if code in (1, EXIT_USER_ERROR):
    # Not sys.exit: of several processes, one that fails alone would wait at its exit for the others, which
    # wait for it; and threads that were writing to a full disk would complain once more.
    os._exit(code)
  sys.exit(code)


def main() -> None:
  """The command `vit_jax`: `vit_jax train --config=quickstart …` runs `python -m vit_jax.main …`."""
  command, *arguments = sys.argv[1:] or ['--help']
  if command in _HELP:
    print(_commands_text())
    return
  if command not in COMMANDS:
    print(f'There is no command {command!r}; choose one of {", ".join(COMMANDS)}.', file=sys.stderr)
    sys.exit(EXIT_USER_ERROR)
  module, _ = COMMANDS[command]
  sys.argv = [f'vit_jax {command}', *arguments]
  runpy.run_module(module, run_name='__main__', alter_sys=False)


def define_config() -> flags.FlagHolder:
  """The flag --config of a command."""
  return config_flags.DEFINE_config_file(
    'config', None, 'A file of configs/, with options as --config.section.option=value.'
  )


def config_of(holder: flags.FlagHolder) -> Any:
  """The checked `config.Config` of a flag of `define_config`.

  Raises:
    UserError: the flag is missing, there is no such file, or options are wrong.
  """
  from vit_jax import config

  name = config_name(holder)
  try:
    values = holder.value.to_dict()
  except OSError as error:  # ml_collections keeps the reason for the first look at the config
    raise UserError(f'There is no file {name}; --config names one, such as configs/quickstart.py.') from error
  return config.from_config_dict(values)


def config_name(holder: flags.FlagHolder) -> str:
  """The file of a flag of `define_config`, with the argument behind its ':'.

  Raises:
    UserError: the flag is missing.
  """
  if not holder.present:
    raise _missing(holder.name)
  return config_flags.get_config_filename(flags.FLAGS[holder.name])


def has_overrides() -> bool:
  """Whether the command line sets options of the config."""
  return bool(_overrides(sys.argv))


def required(holder: flags.FlagHolder) -> Any:
  """The value of a flag that must be given.

  Raises:
    UserError: it is missing; the error has an example.
  """
  if holder.value in (None, ''):
    raise _missing(holder.name)
  return holder.value


def _exit_code(main: Callable[..., None], argv: Sequence[str], positional: bool) -> int:
  try:
    if any(argument in _HELP for argument in argv[1:]):
      print(_help_text(main, argv))
      return 0
    arguments = _parse(argv)
    if arguments and not positional:
      raise UserError(f'{arguments[0]!r} is not a flag; options begin with --, values follow with =.')
    absl_logging.set_verbosity(absl_logging.WARNING)
    if positional:
      main(arguments)
    else:
      main()
  except UserError as error:
    return _fail(str(error), EXIT_USER_ERROR)
  except Preempted as stop:
    return _fail(f'{stop} Start the same command again to go on.', EXIT_RESTART)
  except BrokenPipeError:  # of a reader such as `head`, that has seen enough
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 0
  except OSError as error:
    place = error.filename or 'the workdir'
    if error.errno in files.DISK_FULL:
      return _fail(f'The disk is full: {place} cannot be written; free some space there.', EXIT_USER_ERROR)
    if error.errno in files.UNWRITABLE:
      text = f'{place} cannot be written ({error.strerror}); choose a place that can.'
      return _fail(text, EXIT_USER_ERROR)
    traceback.print_exc()
    return 1
  except Exception:
    traceback.print_exc()
    return 1
  return 0


def _parse(argv: Sequence[str]) -> list[str]:
  """Parses the flags; the arguments that are none.

  Raises:
    UserError: a flag or an option that there is not, or a wrong value.
  """
  try:
    return flags.FLAGS(list(argv))[1:]
  except UserError:
    raise
  except Exception as error:  # ml_collections raises what it likes for a wrong config or override
    if '--debug' in argv:
      raise
    raise _parse_error(error, argv) from error


def _parse_error(error: Exception, argv: Sequence[str]) -> UserError:
  """What is wrong with the command line, in one sentence."""
  text = ' '.join(str(error).split())
  unknown = re.search(r"Unknown command line flag '([^']*)'(?:\. Did you mean: (\S+) \?)?", text)
  if unknown:
    hint = f'did you mean --{unknown[2]}?' if unknown[2] else '--help lists the flags.'
    return UserError(f'--{unknown[1]} is not a flag; {hint}')
  wrong = re.match(r'flag --(config\.\S+?)=(.*?): ', text)
  if wrong:
    kind = _type_name(argv, wrong[1].removeprefix('config.'))
    return UserError(f'{wrong[1]} is {wrong[2]!r}, which is not of type {kind}.')
  if 'Did you mean' in text or isinstance(error, KeyError | AttributeError):
    for name in _overrides(argv):
      if name not in _option_names(argv):
        return _unknown_option(name, argv)
  return UserError(text)


def _overrides(argv: Sequence[str]) -> list[str]:
  """The dotted names of the options that a command line sets."""
  found = (re.match(r'--?config\.([\w.]+)', argument) for argument in argv[1:])
  return [match[1] for match in found if match]


def _written_config(argv: Sequence[str]) -> Any:
  """The config of the command line's file without the overrides; the default one if that cannot be read."""
  from vit_jax import config

  names = (re.match(r'--?config=(.+)', argument) for argument in argv[1:])
  name = next((match[1] for match in names if match), '')
  path, _, argument = name.partition(':')
  try:
    get_config = runpy.run_path(path)['get_config']
    return config.from_config_dict(get_config(argument) if argument else get_config())
  except Exception:  # what is wrong with the file is told elsewhere
    return config.Config()


def _option_names(argv: Sequence[str]) -> set[str]:
  """The dotted names of all options of the command line's config file."""
  from vit_jax import option_docs

  return {doc.name for doc in option_docs.documented(_written_config(argv))}


def _unknown_option(name: str, argv: Sequence[str]) -> UserError:
  from vit_jax import option_docs

  near = option_docs.nearest(name, _option_names(argv))
  hint = f'did you mean config.{near}?' if near else '--help lists the options.'
  return UserError(f'There is no option config.{name}; {hint}')


def _type_name(argv: Sequence[str], name: str) -> str:
  """The type of an option, as errors name it."""
  from vit_jax import options

  value = options.flatten(_written_config(argv)).get(name)
  return 'its option' if value is None else type(value).__name__


def _missing(name: str) -> UserError:
  """The error for a flag that is missing, with the example of the command's docstring that has it."""
  examples = [line.strip() for line in _module_doc().splitlines() if line.strip().startswith('python -m')]
  fitting = [line for line in examples if f'--{name}=' in line] or examples
  hint = f'for example: {fitting[0]}' if fitting else '--help lists the flags.'
  return UserError(f'--{name} is missing; {hint}')


def _module_doc() -> str:
  return sys.modules['__main__'].__doc__ or ''


def _help_text(main: Callable[..., None], argv: Sequence[str]) -> str:
  """The command's docstring, its own flags with their defaults and, where it has --config, all options."""
  doc = sys.modules[main.__module__].__doc__ or ''
  own = [flag for flag in flags.FLAGS.get_key_flags_for_module(argv[0]) if flag.name != 'debug']
  own += [
    flag for flag in flags.FLAGS.get_key_flags_for_module('vit_jax.cli') if flag.name in ('config', 'debug')
  ]
  lines = [doc.strip(), '', 'Flags:']
  names = set()
  for flag in own:
    if flag.name in names or not flag.help:
      continue
    names.add(flag.name)
    default = '' if flag.default is None else f' (default: {flag.default})'
    lines.append(f'  --{flag.name}{default}')
    lines.append(textwrap.fill(flag.help, 100, initial_indent='      ', subsequent_indent='      '))
  if 'config' in flags.FLAGS:
    from vit_jax import config, option_docs

    lines += ['', 'Options of a config, with the defaults that a file of configs/ replaces:', '']
    lines.append(option_docs.help_text(config.Config()))
  return '\n'.join(lines)


def _commands_text() -> str:
  """The list of commands."""
  width = max(map(len, COMMANDS))
  lines = [f'  {name:<{width}}  {text}' for name, (_, text) in COMMANDS.items()]
  title = 'Vision Transformers in JAX. Commands, as `vit_jax NAME …` or `python -m MODULE …`:'
  return '\n'.join([title, '', *lines, '', '`vit_jax NAME --help` says more.'])


def _fail(text: str, code: int) -> int:
  """Prints the sentence; with --debug the traceback too."""
  if _DEBUG.present and _DEBUG.value:
    traceback.print_exc()
  print(text, file=sys.stderr)
  return code
