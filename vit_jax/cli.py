"""What all commands share: flags, --help, one-sentence errors, exit codes, and the command `vit_jax`."""

import contextlib
import difflib
import os
import pathlib
import re
import resource
import runpy
import sys
import textwrap
import traceback
from collections.abc import Callable, Sequence
from typing import Any, Literal

from absl import flags
from ml_collections import config_flags

from vit_jax.foundation import error_sentences, signals, terminal
from vit_jax.foundation.errors import EXIT_RESTART, EXIT_USER_ERROR, Preempted, UserError
from vit_jax.options import config_files
from vit_jax.parallel import aborts

# Command -> (module, what it does).
COMMANDS = {
  'train': ('vit_jax.main', 'trains, resumes or evaluates a model by a config'),
  'predict': ('vit_jax.predict', 'classifies images with any checkpoint'),
  'evaluate': (
    'vit_jax.evaluate',
    'evaluates any checkpoint on images with classes, and shows the wrong ones',
  ),
  'serve': ('vit_jax.serve', 'serves a checkpoint over HTTP, with a page'),
  'convert': ('vit_jax.convert', 'converts a checkpoint into another format'),
  'export': ('vit_jax.export', 'exports a checkpoint to ONNX or StableHLO, to run elsewhere'),
  'push': ('vit_jax.push', 'pushes a checkpoint to the Hugging Face Hub, with a card'),
  'prepare': ('vit_jax.prepare', 'prepares images for fast reading'),
  'selftrain': ('vit_jax.selftrain', 'labels images by teachers, for a student to be trained on'),
  'transfer': ('vit_jax.transfer', 'makes the table of a checkpoint: fine-tuning, VTAB, few-shot probes'),
  'study': ('vit_jax.study', 'trains configs with several seeds, one core each, to a table'),
  'compare': ('vit_jax.compare', 'puts runs side by side'),
  'visualize': ('vit_jax.visualize', 'draws what a model sees'),
  'plan': ('vit_jax.plan', 'compiles a run for a machine that is not here: memory, time, core-days'),
  'contact_sheet': ('vit_jax.contact_sheet', 'draws training images under each level of augmentation'),
}

_HELP = ('--help', '-h', '-help', '--helpfull', '--helpshort', '-helpfull', '-helpshort')
# What absl adds to the help of a flag that may be given several times.
_OF_LISTS = r';\s+repeat this option to specify a list of values$'
_DEBUG = flags.DEFINE_bool('debug', False, 'Show the traceback of an error.')
flags.disclaim_key_flags()  # what is defined below belongs to the command that asks for it


def run(main: Callable[..., None], argv: Sequence[str] | None = None, *, positional: bool = False) -> None:
  """Parses the flags, calls `main`, and ends the process.

  Args:
    main: takes nothing, or, where `positional`, the list of the arguments that are no flags.
    argv: the command line; None: this process's.
    positional: whether there may be arguments that are no flags.

  Exit code 0: done. 2: a wrong config or input, said in one sentence on stderr. 75: stopped after a save, or
  because a bucket is out of reach; start again. 130: interrupted by Ctrl-C. 1: an error of ours, with its
  traceback (--debug shows that of the others too).
  """
  with signals.end_at_interrupt():
    code = _exit_code(main, sys.argv if argv is None else argv, positional)
  with contextlib.suppress(OSError):  # of a disk that is full, which has been said
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
    near = difflib.get_close_matches(command, COMMANDS, n=1)
    hint = f'did you mean {near[0]}?' if near else f'choose one of {", ".join(COMMANDS)}.'
    print(f'There is no command {command!r}; {hint}', file=sys.stderr)
    sys.exit(EXIT_USER_ERROR)
  module, _ = COMMANDS[command]
  sys.argv = [f'vit_jax {command}', *arguments]
  runpy.run_module(module, run_name='__main__', alter_sys=True)  # so that its docstring is __main__'s


def define_config() -> flags.FlagHolder:
  """The flag --config of a command."""
  holder = config_flags.DEFINE_config_file(
    'config',
    None,
    "A config file, or the name of one that comes with vit_jax, and behind a ':' its argument, such as "
    'vit_l16:jft. Options are set as --config.section.option=value.',
  )
  flags.FLAGS['config'].parser = _ConfigParser()
  return holder


def define_checkpoint() -> flags.FlagHolder[str | None]:
  """The flag --checkpoint of a command that loads one."""
  return flags.DEFINE_string('checkpoint', None, 'What vit_jax.load takes: a path, an address or a name.')


def define_class_names() -> flags.FlagHolder[str | None]:
  """The flag --class_names of a command that names the classes of a checkpoint."""
  text = 'A file with a name a line, for a checkpoint that has none; a path or an address.'
  return flags.DEFINE_string('class_names', None, text)


def define_classes() -> flags.FlagHolder[list[str] | None]:
  """The flag --classes of a command that makes a head of texts."""
  text = 'Texts that CLIP or SigLIP compares images with, such as "a dog, a cat".'
  return flags.DEFINE_list('classes', None, text)


def define_tta() -> flags.FlagHolder[bool]:
  """The flag --tta of a command that asks a model for classes."""
  return flags.DEFINE_bool('tta', False, 'Mean logits of each image and its mirror image, in twice the time.')


def define_weights() -> flags.FlagHolder[Literal['raw', 'ema'] | None]:
  """The flag --weights of a command that loads a checkpoint."""
  text = (
    'Of a run that has an EMA of its parameters: which to take (default: those by which it chose its best).'
  )
  holder: Any = flags.DEFINE_enum('weights', None, ['raw', 'ema'], text)
  return holder


class _ConfigParser(flags.ArgumentParser):
  """Turns the value of --config into what the file's `get_config` returns."""

  def parse(self, argument: str) -> Any:
    values = config_files.load(argument)
    values.lock()  # an option that there is not is an error
    return values

  def flag_type(self) -> str:
    return 'config file'


def config_of(holder: flags.FlagHolder) -> Any:
  """The checked `config.Config` of a flag of `define_config`; UserError where it is missing or wrong."""
  from vit_jax import config

  if not holder.present:
    raise _missing(holder.name)
  return config.from_config_dict(holder.value)


def config_name(holder: flags.FlagHolder) -> str:
  """The file of a flag of `define_config`, with the argument behind its ':'; UserError where it is missing."""
  if not holder.present:
    raise _missing(holder.name)
  return config_flags.get_config_filename(flags.FLAGS[holder.name])


def has_overrides() -> bool:
  """Whether the command line sets options of the config."""
  return bool(_overrides(sys.argv))


def required(holder: flags.FlagHolder) -> Any:
  """The value of a flag that must be given; otherwise a UserError with an example."""
  if holder.value in (None, ''):
    raise _missing(holder.name)
  return holder.value


def local_folder(holder: flags.FlagHolder) -> pathlib.Path:
  """The folder that a flag must give; UserError where it is missing, or an address."""
  return local_path(holder.name, required(holder))


def local_path(flag: str, value: str) -> pathlib.Path:
  """The path that a flag gives; UserError where it is an address."""
  if '://' in value:
    raise UserError(f'--{flag}={value} is an address, which this command does not write to; give a folder.')
  return pathlib.Path(value).expanduser()


def missing_arguments(sentence: str) -> UserError:
  """The error where arguments that are no flags are missing: a sentence without full stop; an example follows."""
  return UserError(f'{sentence}, for example: {_example("")}')


def _exit_code(main: Callable[..., None], argv: Sequence[str], positional: bool) -> int:
  terminal.prepare()
  try:
    if any(argument in _HELP for argument in argv[1:]):
      print(_help_text(main, argv))
    else:
      terminal.show_warnings()
      if resource.getrlimit(resource.RLIMIT_AS)[0] != resource.RLIM_INFINITY:
        aborts.end_at_abort(error_sentences.too_little_memory(), EXIT_USER_ERROR)
      arguments = _parse(argv)
      if arguments and not positional:
        raise _not_a_flag(arguments[0])
      if positional:
        main(arguments)
      else:
        main()
    sys.stdout.flush()
  except UserError as error:
    return _fail(str(error), error.exit_code)
  except Preempted as stop:
    return _fail(f'{stop} Start the same command again to go on.', EXIT_RESTART)
  except BrokenPipeError:  # of a reader such as `head`, that has seen enough
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 0
  except Exception as error:
    text = error_sentences.of(error)
    if text:
      return _fail(text, EXIT_USER_ERROR)
    traceback.print_exc()
    return 1
  return 0


def _parse(argv: Sequence[str]) -> list[str]:
  """Parses the flags; the arguments that are none. UserError for an unknown flag or option, or a wrong value."""
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
  if isinstance(error, flags.UnrecognizedFlagError):
    return _unknown_flag(error.flagname, argv)
  wrong = re.match(r'flag --(\S+?)=(.*?): ', text)
  if wrong:
    return _wrong_value(wrong[1], wrong[2], argv)
  without_value = re.match(r'Missing value for flag -+(\S+)', text)
  if without_value:
    return UserError(f'--{without_value[1]} has no value; write --{without_value[1]}=VALUE.')
  if 'Did you mean' in text or isinstance(error, KeyError | AttributeError):
    for name in _overrides(argv):
      if name not in _option_names(argv):
        return _unknown_option(name, argv)
  return UserError(text)


def _not_a_flag(argument: str) -> UserError:
  """The error for an argument of a command that takes flags only; perhaps a config without its flag."""
  hint = 'options begin with --, values follow with =.'
  if 'config' in flags.FLAGS:
    with contextlib.suppress(UserError):
      config_files.find(argument.partition(':')[0])
      hint = f'did you mean --config={argument}?'
  return UserError(f'{argument!r} is not a flag; {hint}')


def _unknown_flag(name: str, argv: Sequence[str]) -> UserError:
  """The error for a flag that the command does not have."""
  from vit_jax.options import documentation

  if 'config' in flags.FLAGS:
    if name.startswith('config.'):  # options of a config are flags once there is a config
      return _missing('config')
    names = {flag.name for flag in _own_flags(argv)}
    near = next(iter(difflib.get_close_matches(name, names, n=1)), None)
    if near is None:
      option = documentation.nearest(name, _option_names(argv))
      near = f'config.{option}' if option else None
  else:
    near = documentation.nearest(name, {flag.name for flag in _own_flags(argv)})
  hint = f'did you mean --{near}?' if near else '--help lists the flags.'
  return UserError(f'--{name} is not a flag; {hint}')


def _wrong_value(name: str, value: str, argv: Sequence[str]) -> UserError:
  """The error for a value that a flag, or an option of the config, cannot have."""
  if name.startswith('config.'):
    kind = _type_name(argv, name.removeprefix('config.'))
    return UserError(f'{name} is {value!r}, which is not of type {kind}.')
  parser = flags.FLAGS[name].parser
  if isinstance(parser, flags.EnumParser):
    return UserError(f'--{name}={value} is unknown; choose one of {", ".join(parser.enum_values)}.')
  kind = 'true or false' if isinstance(parser, flags.BooleanParser) else parser.syntactic_help
  return UserError(f'--{name}={value} is not possible; give {kind}.')


def _overrides(argv: Sequence[str]) -> list[str]:
  """The dotted names of the options that a command line sets."""
  found = (re.match(r'--?config\.([\w.]+)', argument) for argument in argv[1:])
  return [match[1] for match in found if match]


def _written_config(argv: Sequence[str]) -> Any:
  """The config of the command line without its overrides; the default one where it cannot be read."""
  from vit_jax import config

  written = _written_file(argv)
  if written is None:
    return config.Config()
  try:
    return config.from_config_dict(config_files.load(written))
  except UserError:  # what is wrong with the file is told elsewhere
    return config.Config()


def _written_file(argv: Sequence[str]) -> str | None:
  """What a command line gives as --config."""
  written = re.search(r'^--?config[=\n](.+)$', '\n'.join(argv[1:]), re.MULTILINE)
  return written and written[1]


def _option_names(argv: Sequence[str]) -> set[str]:
  """The dotted names of all options of the command line's config file."""
  from vit_jax import options

  return set(options.flatten(_written_config(argv)))


def _unknown_option(name: str, argv: Sequence[str]) -> UserError:
  from vit_jax.options import documentation

  near = documentation.nearest(name, _option_names(argv))
  hint = f'did you mean config.{near}?' if near else '--help lists the options.'
  return UserError(f'There is no option config.{name}; {hint}')


def _type_name(argv: Sequence[str], name: str) -> str:
  """The type of an option, as errors name it."""
  from vit_jax import options

  value = options.flatten(_written_config(argv)).get(name)
  return 'its option' if value is None else type(value).__name__


def _missing(name: str) -> UserError:
  """The error for a flag that is missing, with the example of the command's docstring that has it."""
  return UserError(f'--{name} is missing; for example: {_example(f"--{name}=")}')


def _example(part: str) -> str:
  """An example of the command's docstring, one with `part` in it if there is such a one."""
  doc = sys.modules['__main__'].__doc__ or ''
  examples = [line.strip() for line in doc.replace('\\\n', '').splitlines()]
  examples = [' '.join(line.split()) for line in examples if line.startswith('vit_jax ')]
  fitting = [line for line in examples if part in line] or [*examples, f'{sys.argv[0]} --help']
  return fitting[0]


def _help_text(main: Callable[..., None], argv: Sequence[str]) -> str:
  """The command's docstring, its own flags with their defaults and, where it has --config, all options."""
  doc = sys.modules[main.__module__].__doc__ or ''
  lines = [doc.strip(), '', 'Flags:']
  for flag in _own_flags(argv):
    default = '' if flag.default in (None, []) else f' (default: {flag.default_as_str})'
    lines.append(f'  --{flag.name}{default}')
    text = re.sub(_OF_LISTS, '', flag.help or '')
    lines.append(textwrap.fill(text, 100, initial_indent='      ', subsequent_indent='      '))
  if 'config' in flags.FLAGS:
    from vit_jax.options import documentation

    written = _written_file(argv)
    if written:
      with contextlib.suppress(UserError):
        config_files.load(written)  # what it registers is listed too
    lines += ['', 'Options of a config, with the defaults that a config file replaces:', '']
    lines.append(documentation.help_text())
  return '\n'.join(lines)


def _own_flags(argv: Sequence[str]) -> list[flags.Flag]:
  """The flags of this command, --debug last; none of the libraries'."""
  return [*flags.FLAGS.get_key_flags_for_module(argv[0]), flags.FLAGS['debug']]


def _commands_text() -> str:
  """The list of commands."""
  width = max(map(len, COMMANDS))
  lines = [f'  {name:<{width}}  {text}' for name, (_, text) in COMMANDS.items()]
  title = 'Vision Transformers in JAX. Commands (`python -m vit_jax.main` is `vit_jax train`):'
  return '\n'.join([title, '', *lines, '', '`vit_jax NAME --help` says more.'])


def _fail(text: str, code: int) -> int:
  """Prints the sentence; with --debug the traceback too."""
  if _DEBUG.present and _DEBUG.value:
    traceback.print_exc()
  print(text, file=sys.stderr)
  return code
