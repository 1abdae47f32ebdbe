"""The files of `configs/`, loaded as the commands load them."""

import importlib.util
import pathlib

from vit_jax import config as c

CONFIGS = pathlib.Path(__file__).parents[1] / 'configs'
FILES = [path for path in sorted(CONFIGS.rglob('*.py')) if path.parent.name != 'studies']


def load(file: str | pathlib.Path, argument: str | None = None) -> c.Config:
  """The checked config of a file, such as 'vit_l16' or 'ablations/heads', for an argument or its default."""
  path = file if isinstance(file, pathlib.Path) else CONFIGS / f'{file}.py'
  spec = importlib.util.spec_from_file_location(path.stem, path)
  module = importlib.util.module_from_spec(spec)
  spec.loader.exec_module(module)
  return c.from_config_dict(module.get_config() if argument is None else module.get_config(argument))
