"""Named sizes of a model: looking them up, and replacing some of them by options."""

import dataclasses
import difflib
from collections.abc import Sequence
from typing import TYPE_CHECKING, TypeVar

from vit_jax.foundation.errors import UserError
from vit_jax.models.base import CUSTOM, MODELS, ModelConfig

if TYPE_CHECKING:
  from _typeshed import DataclassInstance

S = TypeVar('S', bound='DataclassInstance')


def resolve(model: ModelConfig, sizes: type[S], needed: Sequence[str]) -> S:
  """The sizes of a model's variant, each replaced by the model's own option of that name where it is not None.

  Raises UserError for an unknown variant, or 'custom' without the options that it needs.
  """
  names = [field.name for field in dataclasses.fields(sizes)]
  own = {name: getattr(model, name) for name in names if getattr(model, name) is not None}
  if model.variant == CUSTOM:
    missing = [f'config.model.{name}' for name in needed if name not in own]
    if missing:
      raise UserError(f"config.model.variant is 'custom', which also needs {', '.join(missing)}.")
    return sizes(**own)
  named = model.variants.get(model.variant)
  if named is None:
    raise _unknown(model)
  return dataclasses.replace(named, **own)


def _unknown(model: ModelConfig) -> UserError:
  for kind in MODELS.names():
    if model.variant in MODELS[kind].variants:
      return UserError(
        f'config.model.variant {model.variant!r} is {MODELS[kind].title}, and config.model.name is '
        f'{MODELS.name_of(type(model))!r}; set --config.model.name={kind}.'
      )
  return UserError(
    f'config.model.variant {model.variant!r} is unknown; did you mean {_nearest(model)!r} '
    f"(there are {', '.join(model.variants)} and 'custom')?"
  )


def _nearest(model: ModelConfig) -> str:
  """The name most like the variant; upper and lower case count less than another letter ('g', 'G')."""

  def likeness(name: str) -> tuple[float, float]:
    caseless = difflib.SequenceMatcher(None, model.variant.lower(), name.lower()).ratio()
    return caseless, difflib.SequenceMatcher(None, model.variant, name).ratio()

  return max([*model.variants, CUSTOM], key=likeness)
