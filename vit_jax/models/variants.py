"""The named sizes of the Vision Transformer."""

import dataclasses
import difflib

from vit_jax import config
from vit_jax.errors import UserError


@dataclasses.dataclass(frozen=True)
class Sizes:
  """What decides the shapes of a Vision Transformer's blocks."""

  patch: int  # pixels along a side of a patch
  width: int  # D, the size of a token
  mlp_dim: int  # hidden units of a block's MLP
  depth: int  # L, encoder blocks
  heads: int


# The paper's table 1 (B, L, H), 'Training data-efficient image transformers' (Ti, S) and 'Scaling
# Vision Transformers' (g, G).
VARIANTS = {
  'Ti/16': Sizes(patch=16, width=192, mlp_dim=768, depth=12, heads=3),
  'S/16': Sizes(patch=16, width=384, mlp_dim=1536, depth=12, heads=6),
  'S/32': Sizes(patch=32, width=384, mlp_dim=1536, depth=12, heads=6),
  'B/8': Sizes(patch=8, width=768, mlp_dim=3072, depth=12, heads=12),
  'B/16': Sizes(patch=16, width=768, mlp_dim=3072, depth=12, heads=12),
  'B/32': Sizes(patch=32, width=768, mlp_dim=3072, depth=12, heads=12),
  'L/16': Sizes(patch=16, width=1024, mlp_dim=4096, depth=24, heads=16),
  'L/32': Sizes(patch=32, width=1024, mlp_dim=4096, depth=24, heads=16),
  'H/14': Sizes(patch=14, width=1280, mlp_dim=5120, depth=32, heads=16),
  'g/14': Sizes(patch=14, width=1408, mlp_dim=6144, depth=40, heads=16),
  'G/14': Sizes(patch=14, width=1664, mlp_dim=8192, depth=48, heads=16),
}


def resolve(model: config.Model) -> Sizes:
  """The sizes of the model's variant, each replaced by the model's own value where it has one.

  Raises:
    UserError: an unknown variant, 'custom' without all sizes, or a width that the heads do not divide.
  """
  names = [field.name for field in dataclasses.fields(Sizes)]
  own = {name: getattr(model, name) for name in names if getattr(model, name) is not None}
  if model.variant == 'custom':
    missing = [f'config.model.{name}' for name in names if name not in own]
    if missing:
      raise UserError(f"config.model.variant is 'custom', which also needs {', '.join(missing)}.")
    sizes = Sizes(**own)
  elif model.variant in VARIANTS:
    sizes = dataclasses.replace(VARIANTS[model.variant], **own)
  else:
    raise UserError(
      f'config.model.variant {model.variant!r} is unknown; did you mean {_nearest(model.variant)!r} '
      f"(there are {', '.join(VARIANTS)} and 'custom')?"
    )
  if sizes.width % sizes.heads:
    raise UserError(
      f'config.model.width {sizes.width} does not divide into config.model.heads {sizes.heads} equal '
      'parts; change one of them.'
    )
  return sizes


def _nearest(variant: str) -> str:
  """The name most like `variant`; upper and lower case count less than another letter ('g', 'G')."""

  def likeness(name: str) -> tuple[float, float]:
    caseless = difflib.SequenceMatcher(None, variant.lower(), name.lower()).ratio()
    return caseless, difflib.SequenceMatcher(None, variant, name).ratio()

  return max([*VARIANTS, 'custom'], key=likeness)
