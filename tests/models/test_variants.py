"""Named sizes, their numbers of parameters, and the options that replace them."""

import pytest
import tiny

from vit_jax.config import EfficientNetConfig, MixerConfig, ResNetConfig, ViTConfig
from vit_jax.foundation.errors import UserError
from vit_jax.models import efficientnet, resnet, vit_sizes
from vit_jax.models.base import MODELS


def test_named_sizes_are_the_published_ones():
  assert ViTConfig(variant='g/14').sizes == vit_sizes.Sizes(14, 1408, 6144, 40, 16)
  assert ViTConfig(variant='G/14').sizes == vit_sizes.Sizes(14, 1664, 8192, 48, 16)
  assert ResNetConfig(variant='R50x2').sizes == resnet.Sizes((3, 4, 6, 3), 128)


# With 1,000 classes: as counted in the papers' own code or its releases, or by PyTorch in transformers' models.
COUNTS = [
  (ViTConfig('Ti/16'), 5_717_416),
  (ViTConfig('S/32'), 22_878_952),
  (ViTConfig('B/16'), 86_567_656),
  (ViTConfig('B/16', pool='gap'), 86_566_120),
  (ViTConfig('L/16'), 304_326_632),
  (ViTConfig('H/14'), 632_045_800),
  (ViTConfig('R+Ti/16'), 6_337_704),
  (ViTConfig('R26+B/32'), 101_383_976),
  (ViTConfig('R50+L/32'), 328_994_856),
  (MixerConfig('Mixer-B/16'), 59_880_472),
  (MixerConfig('Mixer-B/32'), 60_293_428),
  (MixerConfig('Mixer-L/16'), 208_196_168),
  (ResNetConfig('R50x3'), 217_319_080),
  (ResNetConfig('R101x1'), 44_541_480),
  (ResNetConfig('R152x4'), 936_533_224),
  (EfficientNetConfig('B0'), 5_288_548),
  (EfficientNetConfig('B7'), 66_347_960),
  (EfficientNetConfig('L2'), 480_309_308),
]


@pytest.mark.slow
@pytest.mark.parametrize(('model', 'count'), COUNTS)
def test_parameter_count_is_the_published_one(model, count):
  assert tiny.count(model, 1000) == count


def test_parameter_count_with_pre_logits_is_that_of_the_release():
  """imagenet21k/ViT-B_16 as released."""
  assert tiny.count(ViTConfig(variant='B/16', pre_logits_size=768), 21_843) == 103_186_515


@pytest.mark.parametrize('kind', MODELS.names())
def test_patches_have_the_pixels_that_the_name_says(kind):
  for variant in MODELS[kind].variants:
    # The root of R+Ti/16 takes 4 pixels for one, and its patches are 8 of these.
    pixels = 32 if kind in ('resnet', 'efficientnet') or variant == 'R+Ti/16' else int(variant.split('/')[1])
    assert MODELS[kind](variant=variant).patch_pixels == pixels, variant


def test_options_replace_the_named_sizes():
  model = ViTConfig(variant='B/16', patch=8, depth=3, heads=4)
  assert model.sizes == vit_sizes.Sizes(patch=8, width=768, mlp_dim=3072, depth=3, heads=4)
  assert EfficientNetConfig('B4', dropout=0.1).sizes == efficientnet.Sizes(1.4, 1.8, dropout=0.1)
  assert ResNetConfig(variant='R50x1', width=32).sizes == resnet.Sizes((3, 4, 6, 3), 32)


def test_custom_has_the_sizes_of_the_options():
  model = ViTConfig(variant='custom', patch=2, width=64, mlp_dim=128, depth=4, heads=2)
  assert model.sizes == vit_sizes.Sizes(2, 64, 128, 4, 2)
  assert tiny.resnet().num_layers == 3 and tiny.resnet().patch_pixels == 8


@pytest.mark.parametrize(
  'model',
  [
    ViTConfig('R50+B/16', pool='gap', depth=3),
    MixerConfig('Mixer-B/16', unroll=True),
    ResNetConfig(),
    EfficientNetConfig('B3'),
  ],
)
def test_resolved_models_are_custom_and_of_the_same_sizes(model):
  resolved = model.resolved()
  assert resolved.variant == 'custom' and resolved.sizes == model.sizes
  assert resolved.resolved() == resolved


@pytest.mark.parametrize(
  'variant, nearest',
  [
    *(('b/16', 'B/16'), ('ViT-B/16', 'B/16'), ('T/16', 'Ti/16'), ('G14', 'G/14'), ('g14', 'g/14')),
  ],
)
def test_unknown_variant_names_the_nearest(variant, nearest):
  with pytest.raises(UserError, match=f'did you mean {nearest!r}'):
    _ = ViTConfig(variant=variant).sizes


@pytest.mark.parametrize(
  ('model', 'said'),
  [
    (ResNetConfig('B/16'), r"'B/16' is a Vision Transformer, and .*name is 'resnet'; set .*name=vit\."),
    (ViTConfig('R50x1'), r"'R50x1' is a ResNet, and .*name is 'vit'; set --config\.model\.name=resnet\."),
  ],
)
def test_a_variant_of_another_model_names_that_model(model, said):
  with pytest.raises(UserError, match=said):
    _ = model.sizes


def test_custom_names_what_is_missing():
  with pytest.raises(UserError) as error:
    _ = ViTConfig(variant='custom', patch=2, width=64, heads=2).sizes
  assert 'config.model.mlp_dim, config.model.depth.' in str(error.value)
  assert 'width' not in str(error.value)


def test_heads_must_divide_the_width():
  with pytest.raises(UserError, match=r'width 768 .*heads 7'):
    _ = ViTConfig(variant='B/16', heads=7).sizes
