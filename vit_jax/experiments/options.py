"""Configs with other values for some options."""

from collections.abc import Mapping
from typing import Any

import ml_collections
from flax import traverse_util

from vit_jax.config import Config, from_config_dict, to_config_dict
from vit_jax.foundation.errors import UserError
from vit_jax.options import documentation


def changed(config: Config | ml_collections.ConfigDict, options: Mapping[str, Any], whose: str) -> Config:
  """A config with other values for some options, by their dotted names.

  Raises UserError, naming whose options they are ("the variant 'wide'"), for one that there is not or a wrong value.
  """
  values = to_config_dict(config) if isinstance(config, Config) else config
  try:
    values.update_from_flattened_dict(options)
  except KeyError as error:
    known = set(traverse_util.flatten_dict(values.to_dict(), sep='.'))
    wrong = next((option for option in options if option not in known), '')
    near = documentation.nearest(wrong, known)
    hint = f'did you mean {near}?' if near else 'the options are in vit_jax/config.py.'
    raise UserError(f'An option of {whose} is wrong: there is no {wrong}; {hint}') from error
  except (TypeError, AttributeError) as error:
    text = ' '.join(str(error).strip('"').split())
    raise UserError(f'An option of {whose} is wrong: {text}') from error
  return from_config_dict(values)
