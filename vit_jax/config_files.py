"""The files that --config names: a path, or the name of a recipe that ships inside the package."""

import difflib
import inspect
import pathlib
import runpy
import traceback
from typing import Any

import ml_collections

from vit_jax.errors import UserError

# The wheel holds the repository's folder `configs` as this one.
RECIPES = pathlib.Path(__file__).parent / 'configs'


def find(name: str) -> str:
  """The file of a config.

  Args:
    name: a path, or a recipe's name without '.py', such as 'quickstart' or 'ablations/position'; its folder
      may be left out. A file of that name goes first.

  Raises:
    UserError: there is no such file and no such recipe.
  """
  if pathlib.Path(name).is_file():
    return name
  recipes = _recipes()
  for recipe, file in recipes.items():
    if name in (recipe, file.stem):
      return str(file)
  raise _unknown(name, recipes)


def load(name_and_argument: str) -> ml_collections.ConfigDict:
  """What the `get_config` of a config file returns.

  Args:
    name_and_argument: a name for `find`; behind a ':', if there is one, stands the argument of `get_config`.

  Raises:
    UserError: there is no such file, it fails, or its `get_config` takes no such argument.
  """
  name, colon, argument = name_and_argument.partition(':')
  arguments = [argument] if colon else []
  file = find(name)
  try:
    get_config = runpy.run_path(file).get('get_config')
    if get_config is None:
      raise UserError(f'{file} has no function get_config(); write one that returns the config.')
    _check_arguments(name, get_config, arguments)
    values = get_config(*arguments)
  except UserError:
    raise
  except OSError as error:
    raise UserError(f'{file} cannot be read: {error}.') from error
  except Exception as error:
    raise _failed(file, error) from error
  if not isinstance(values, ml_collections.ConfigDict):
    kind = type(values).__name__
    raise UserError(f'get_config() of {file} gives a {kind}; write: return to_config_dict(Config(...)).')
  return values


def _recipes() -> dict[str, pathlib.Path]:
  """'ablations/position' -> its file, for every recipe of the package; those in sub-folders come last."""
  files = sorted(RECIPES.glob('*.py')) + sorted(RECIPES.glob('*/*.py'))
  return {file.relative_to(RECIPES).with_suffix('').as_posix(): file for file in files}


def _unknown(name: str, recipes: dict[str, pathlib.Path]) -> UserError:
  """The error for a name that is no file and no recipe."""
  known = {file.stem: recipe for recipe, file in recipes.items()}
  near = [known[found] for found in difflib.get_close_matches(pathlib.PurePath(name).stem, known, n=1)]
  if '/' in name or name.endswith('.py'):
    hint = f'the package has --config={near[0]}.' if near else 'check the path.'
    return UserError(f'There is no config file {name}; {hint}')
  if near:
    return UserError(f'There is no config {name!r}; did you mean --config={near[0]}?')
  return UserError(f'There is no config {name!r}; name a file, or one of {", ".join(recipes)}.')


def _check_arguments(name: str, get_config: Any, arguments: list[str]) -> None:
  """Raises UserError where `get_config` takes no such arguments."""
  signature = inspect.signature(get_config)
  try:
    signature.bind(*arguments)
  except TypeError as error:
    if arguments:
      text = f"takes no argument; leave ':{arguments[0]}' out."
    else:
      text = (
        f'needs an argument; write it behind a colon: --config={name}:{next(iter(signature.parameters))}.'
      )
    raise UserError(f'The config {name} {text}') from error


def _failed(file: str, error: Exception) -> UserError:
  """The error for a file that raises one, with the line of the file."""
  lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == file]
  if isinstance(error, SyntaxError) and error.filename == file:
    lines = [error.lineno]
  place = f'Line {lines[-1]} of {file}' if lines else f'The config file {file}'
  reason = ' '.join(str(error).split())
  return UserError(f'{place} fails with {type(error).__name__}: {reason}')
