"""`vit_jax.list_models`: names that `load` takes, and numbers that their authors publish."""

import pytest

import vit_jax
from vit_jax.models.base import MODELS, Architecture
from vit_jax.pretrained import catalogue, published_models

# MiB of the files, as the README of google-research/vision_transformer states them.
AUGREG_MIB = {
  'Ti_16': 37,
  'S_32': 118,
  'S_16': 115,
  'B_32': 398,
  'B_16': 391,
  'L_16': 1243,
  'R_Ti_16': 40,
  'R26_S_32': 170,
  'R50_L_32': 1337,
}
# Parameters of files that were counted in the released ones, or that the original code prints.
COUNTED = {
  'imagenet21k/ViT-B_16': 103_186_515,
  'imagenet21k+imagenet2012/ViT-B_16-224': 86_567_656,
  'imagenet1k/Mixer-L_16': 208_196_168,
  'sam/ViT-B_32': 88_224_232,
}


def test_every_name_is_one_that_load_takes():
  names = [model.name for model in vit_jax.list_models()]
  assert len(names) == len(set(names)) > 60
  assert all(catalogue.is_name(name) and catalogue.is_published(name) for name in names)


def test_sizes_are_those_that_the_authors_publish():
  models = {model.name: model for model in vit_jax.list_models()}
  sizes = {name: models[f'augreg/{name}'].parameters * 4 / 2**20 for name in AUGREG_MIB}
  assert sizes == pytest.approx(AUGREG_MIB, abs=1.01)
  assert {name: models[name].parameters for name in COUNTED} == COUNTED


def test_a_pattern_chooses_by_model_or_name():
  chosen = vit_jax.list_models('b/16')
  assert {model.model for model in chosen} == {'B/16', 'R50+B/16', 'Mixer-B/16'}
  assert 'augreg/B_16' in [model.name for model in chosen]
  assert len(vit_jax.list_models('ILSVRC')) == 6 and not vit_jax.list_models('B/17')
  (tuned,) = [model for model in chosen if model.accuracy == 85.49]
  assert f'{tuned.name}  B/16' in repr(chosen) and '85.5 %' in repr(chosen)


@pytest.mark.slow
@pytest.mark.parametrize('variant', published_models._WITHOUT_HEAD)
def test_parameters_are_those_of_the_network(variant):
  kind = next(kind for kind in MODELS.names() if variant in MODELS[kind].variants)
  for side in (224, 448) if variant in ('Ti/16', 'R+Ti/16', 'R50x1') else (224,):
    architecture = Architecture(MODELS[kind](variant=variant), (side, side), 3, 7)
    expected = sum(leaf.size for leaf in architecture.shapes().values())
    assert published_models._parameters(variant, side, 7, False) == expected
