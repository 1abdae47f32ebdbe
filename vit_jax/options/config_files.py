"""The files that --config and `vit_jax.study` name: a path, or the name of one that ships inside the package."""

import difflib
import inspect
import pathlib
import runpy
import traceback
from typing import Any, Literal

import ml_collections

from vit_jax.foundation.errors import UserError

# The wheel holds the repository's folder `configs` as this one.
RECIPES = pathlib.Path(__file__).parents[1] / 'configs'

Kind = Literal['config', 'study']  # a study's file has get_study() instead of get_config()


def find(name: str, kind: Kind = 'config') -> str:
  """The file of a config, or of a study; UserError where there is none.

  `name` is a path, or a recipe's name without '.py', such as 'quickstart' or 'ablations/position'; its folder may be
  left out. A file of that name goes first. The recipes of studies are in the folder 'studies'.
  """
  if pathlib.Path(name).is_file():
    return name
  recipes = _recipes(kind)
  for recipe, file in recipes.items():
    if name in (recipe, file.stem):
      return str(file)
  raise _unknown(name, recipes, kind)


def load(name_and_argument: str) -> ml_collections.ConfigDict:
  """What the `get_config` of a config file returns; name, argument and errors as for `from_file`."""
  file, values = from_file(name_and_argument, 'config')
  if not isinstance(values, ml_collections.ConfigDict):
    kind = type(values).__name__
    raise UserError(f'get_config() of {file} gives a {kind}; write: return to_config_dict(Config(...)).')
  return values


def from_file(name_and_argument: str, kind: Kind) -> tuple[str, Any]:
  """A file by a name for `find`, and what its `get_config` or `get_study` returns; behind a ':' may stand its argument.

  Raises UserError where the file or the function is not there or fails, or the function takes no such argument.
  """
  name, colon, argument = name_and_argument.partition(':')
  file, arguments = find(name, kind), [argument] if colon else []
  try:
    function = runpy.run_path(file).get(f'get_{kind}')
    if function is None:
      raise UserError(f'{file} has no function get_{kind}(); write one that returns the {kind}.')
    _check_arguments(kind, name, function, arguments)
    return file, function(*arguments)
  except UserError:
    raise
  except OSError as error:
    raise UserError(f'{file} cannot be read: {error}.') from error
  except Exception as error:
    raise _failed(kind, file, error) from error


def _recipes(kind: Kind) -> dict[str, pathlib.Path]:
  """'ablations/position' -> its file, for every recipe of the package; those in sub-folders come last."""
  files = sorted(RECIPES.glob('*.py')) + sorted(RECIPES.glob('*/*.py'))
  files = [file for file in files if (file.parent.name == 'studies') == (kind == 'study')]
  return {file.relative_to(RECIPES).with_suffix('').as_posix(): file for file in files}


def _unknown(name: str, recipes: dict[str, pathlib.Path], kind: Kind) -> UserError:
  """The error for a name that is no file and no recipe."""
  known = {file.stem: recipe for recipe, file in recipes.items()}
  flag = '--config=' if kind == 'config' else ''
  near = [flag + known[found] for found in difflib.get_close_matches(pathlib.PurePath(name).stem, known, n=1)]
  if '/' in name or name.endswith('.py'):
    hint = f'the package has {near[0]}.' if near else 'check the path.'
    return UserError(f'There is no {kind} file {name}; {hint}')
  if near:
    return UserError(f'There is no {kind} {name!r}; did you mean {near[0]}?')
  return UserError(f'There is no {kind} {name!r}; name a file, or one of {", ".join(recipes)}.')


def _check_arguments(kind: Kind, name: str, function: Any, arguments: list[str]) -> None:
  """Raises UserError where a file's function takes no such arguments."""
  signature = inspect.signature(function)
  try:
    signature.bind(*arguments)
  except TypeError as error:
    if arguments:
      text = f"takes no argument; leave ':{arguments[0]}' out."
    else:
      flag = '--config=' if kind == 'config' else ''
      text = f'needs an argument; write it behind a colon: {flag}{name}:{next(iter(signature.parameters))}.'
    raise UserError(f'The {kind} {name} {text}') from error


def _failed(kind: Kind, file: str, error: Exception) -> UserError:
  """The error for a file that raises one, with the line of the file."""
  lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == file]
  if isinstance(error, SyntaxError) and error.filename == file:
    lines = [error.lineno]
  place = f'Line {lines[-1]} of {file}' if lines else f'The {kind} file {file}'
  reason = ' '.join(str(error).split())
  return UserError(f'{place} fails with {type(error).__name__}: {reason}')
