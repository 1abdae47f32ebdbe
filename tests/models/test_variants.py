"""Named sizes and their overrides."""

import pytest

from vit_jax import config
from vit_jax.errors import UserError
from vit_jax.models.variants import VARIANTS, ResNetSizes, Sizes, resolve


def test_named():
  assert resolve(config.ViTConfig(variant='g/14')) == Sizes(14, 1408, 6144, 40, 16)
  assert resolve(config.ViTConfig(variant='G/14')) == Sizes(14, 1664, 8192, 48, 16)
  for variant in VARIANTS:
    sizes = resolve(config.ViTConfig(variant=variant))
    if isinstance(sizes, ResNetSizes):
      assert sizes.pixels == 32
      continue
    # The root of R+Ti/16 takes 4 pixels for one, and its patches are 8 of these.
    pixels = 32 if variant == 'R+Ti/16' else int(variant.split('/')[1])
    assert sizes.pixels == pixels


def test_overrides_replace_the_named_size():
  model = config.ViTConfig(variant='B/16', patch=8, depth=3, heads=4)
  assert resolve(model) == Sizes(patch=8, width=768, mlp_dim=3072, depth=3, heads=4)


def test_custom():
  model = config.ViTConfig(variant='custom', patch=2, width=64, mlp_dim=128, depth=4, heads=2)
  assert resolve(model) == Sizes(2, 64, 128, 4, 2)


@pytest.mark.parametrize(
  'variant, nearest',
  [
    ('b/16', 'B/16'),
    ('ViT-B/16', 'B/16'),
    ('B16', 'B/16'),
    ('T/16', 'Ti/16'),
    ('S/61', 'S/16'),
    ('h/14', 'H/14'),
    ('G14', 'G/14'),
    ('g14', 'g/14'),
    ('Custom', 'custom'),
    ('L-32', 'L/32'),
  ],
)
def test_unknown_names_the_nearest(variant, nearest):
  with pytest.raises(UserError, match=f'did you mean {nearest!r}'):
    resolve(config.ViTConfig(variant=variant))


def test_custom_names_what_is_missing():
  with pytest.raises(UserError) as error:
    resolve(config.ViTConfig(variant='custom', patch=2, width=64, heads=2))
  assert 'config.model.mlp_dim, config.model.depth.' in str(error.value)
  assert 'width' not in str(error.value)


def test_heads_divide_the_width():
  with pytest.raises(UserError, match=r'width 768 .*heads 7'):
    resolve(config.ViTConfig(variant='B/16', heads=7))
