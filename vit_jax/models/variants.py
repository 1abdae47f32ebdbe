"""The named sizes of the Vision Transformer, the hybrids with a ResNet, the MLP-Mixer and the BiT ResNets."""

import dataclasses
import difflib
from collections.abc import Collection
from typing import ClassVar

from vit_jax import config
from vit_jax.errors import UserError


@dataclasses.dataclass(frozen=True)
class Sizes:
  """What decides the shapes of the blocks of a Vision Transformer, a hybrid or an MLP-Mixer."""

  patch: int  # pixels along a side of a patch; in a hybrid, cells of the ResNet's output
  width: int  # D, the size of a token
  mlp_dim: int  # hidden units of a block's MLP
  depth: int  # L, encoder blocks
  heads: int | None = None  # None: no attention, an MLP-Mixer
  stem_blocks: tuple[int, ...] | None = None  # bottlenecks in each stage of a hybrid's ResNet
  stem_width: int = 64  # channels of its root
  tokens_mlp_dim: int | None = None  # hidden units of an MLP-Mixer's MLP over tokens

  @property
  def stem_stride(self) -> int:
    """Pixels along a side of a cell of the stem's output: 4 after the root, doubled by the later stages."""
    if self.stem_blocks is None:
      return 1
    return 4 * 2 ** max(len(self.stem_blocks) - 1, 0)

  @property
  def kind(self) -> str:
    """'vit' (hybrids too) or 'mixer'."""
    return 'vit' if self.tokens_mlp_dim is None else 'mixer'

  @property
  def pixels(self) -> int:
    """Along a side of what becomes a token."""
    return self.patch * self.stem_stride


@dataclasses.dataclass(frozen=True)
class ResNetSizes:
  """What decides the shapes of a BiT ResNet, whose first stage has 4 times the root's channels."""

  resnet_blocks: tuple[int, ...]  # bottlenecks in each stage
  width: int  # channels of the root
  kind: ClassVar[str] = 'resnet'

  @property
  def depth(self) -> int:
    """Bottlenecks in all."""
    return sum(self.resnet_blocks)

  @property
  def pixels(self) -> int:
    """Along a side of a cell of the last feature map: 4 after the root, doubled by the later stages."""
    return 4 * 2 ** (len(self.resnet_blocks) - 1)


# The paper's table 1 (B, L, H), 'Training data-efficient image transformers' (Ti, S) and 'Scaling
# Vision Transformers' (g, G). Hybrids: the paper, and 'How to train your ViT?' (arXiv 2106.10270), in
# which R+Ti/16 is what they called it, although its tokens are of 32 pixels. 'MLP-Mixer' (arXiv
# 2105.01601), table 1. 'Big Transfer' (BiT, arXiv 1912.11370): R50x3 has 50 layers of 3 times the width.
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
  'R+Ti/16': Sizes(patch=8, width=192, mlp_dim=768, depth=12, heads=3, stem_blocks=()),
  'R26+S/32': Sizes(patch=1, width=384, mlp_dim=1536, depth=12, heads=6, stem_blocks=(2, 2, 2, 2)),
  'R26+B/32': Sizes(patch=1, width=768, mlp_dim=3072, depth=12, heads=12, stem_blocks=(2, 2, 2, 2)),
  'R50+B/16': Sizes(patch=1, width=768, mlp_dim=3072, depth=12, heads=12, stem_blocks=(3, 4, 9)),
  'R50+L/32': Sizes(patch=1, width=1024, mlp_dim=4096, depth=24, heads=16, stem_blocks=(3, 4, 6, 3)),
  'Mixer-B/16': Sizes(patch=16, width=768, mlp_dim=3072, depth=12, tokens_mlp_dim=384),
  'Mixer-B/32': Sizes(patch=32, width=768, mlp_dim=3072, depth=12, tokens_mlp_dim=384),
  'Mixer-L/16': Sizes(patch=16, width=1024, mlp_dim=4096, depth=24, tokens_mlp_dim=512),
  'R50x1': ResNetSizes((3, 4, 6, 3), width=64),
  'R50x2': ResNetSizes((3, 4, 6, 3), width=128),
  'R50x3': ResNetSizes((3, 4, 6, 3), width=192),
  'R101x1': ResNetSizes((3, 4, 23, 3), width=64),
  'R101x3': ResNetSizes((3, 4, 23, 3), width=192),
  'R152x1': ResNetSizes((3, 8, 36, 3), width=64),
  'R152x2': ResNetSizes((3, 8, 36, 3), width=128),
  'R152x4': ResNetSizes((3, 8, 36, 3), width=256),
  'R200x3': ResNetSizes((3, 24, 36, 3), width=192),
}


def resolve(model: config.Model) -> Sizes | ResNetSizes:
  """The sizes of the model's variant, each replaced by the model's own value where it has one.

  Raises:
    UserError: an unknown variant, 'custom' without all sizes, or a width that the heads do not divide.
  """
  named = VARIANTS.get(model.variant)
  resnet = model.resnet_blocks is not None or isinstance(named, ResNetSizes)
  names = [field.name for field in dataclasses.fields(ResNetSizes if resnet else Sizes)]
  own = {name: getattr(model, name) for name in names if getattr(model, name) is not None}
  if model.variant == 'custom':
    needed = ['width'] if resnet else ['patch', 'width', 'mlp_dim', 'depth', 'heads']
    if 'tokens_mlp_dim' in own:
      needed.remove('heads')
    missing = [f'config.model.{name}' for name in needed if name not in own]
    if missing:
      raise UserError(f"config.model.variant is 'custom', which also needs {', '.join(missing)}.")
    sizes = ResNetSizes(**own) if resnet else Sizes(**own)
  elif named is None:
    raise UserError(
      f'config.model.variant {model.variant!r} is unknown; did you mean {_nearest(model.variant)!r} '
      f"(there are {', '.join(VARIANTS)} and 'custom')?"
    )
  elif resnet and not isinstance(named, ResNetSizes):
    raise UserError(
      f'config.model.resnet_blocks makes a ResNet, and config.model.variant is {model.variant!r}; choose '
      "'custom' or 'R50x1'."
    )
  else:
    sizes = dataclasses.replace(named, **own)
  if not resnet and sizes.heads is not None and sizes.width % sizes.heads:
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


def grid(
  sizes: Sizes | ResNetSizes, image_size: tuple[int, int], *, option: str = 'config.data.image_size'
) -> tuple[int, int]:
  """Patches, or cells of a ResNet's last feature map, down and across.

  Args:
    sizes: the model's.
    image_size: height, width.
    option: where that is from, for the error.

  Raises:
    UserError: they do not fit into the image.
  """
  if sizes.kind == 'resnet':
    return -(-image_size[0] // sizes.pixels), -(-image_size[1] // sizes.pixels)
  cells = tuple(-(-side // sizes.stem_stride) for side in image_size)
  if all(side % sizes.patch == 0 for side in cells):
    return cells[0] // sizes.patch, cells[1] // sizes.patch
  pixels = sizes.pixels
  below = tuple(max(side // pixels, 1) * pixels for side in image_size)
  above = tuple(-(-side // pixels) * pixels for side in image_size)
  nearest = ' or '.join(str(size) for size in dict.fromkeys((below, above)))
  raise UserError(
    f'{option} {tuple(image_size)} does not divide into patches of {pixels} pixels; '
    f'the nearest sizes that do are {nearest}.'
  )


def check_options(model: config.Model, allowed: Collection[str], network: str) -> None:
  """Raises UserError where an option is set that would do nothing.

  Args:
    model: the config.
    allowed: names of the options that do something.
    network: what does not have the others, for the error.
  """
  for field in dataclasses.fields(config.Model):
    value = getattr(model, field.name)
    if field.name not in allowed and value not in (field.default, False):
      raise UserError(f'config.model.{field.name} is {value}, which {network} does not have; leave it out.')


def has_class_token(model: config.Model) -> bool:
  """Whether the config asks for a class token."""
  return model.pool in ('token', 'token_gap') if model.class_token is None else model.class_token
