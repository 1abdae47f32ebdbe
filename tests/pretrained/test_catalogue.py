"""Names of published checkpoints: their addresses, and corrections of wrong ones."""

import re

import pytest

from vit_jax.foundation.errors import UserError
from vit_jax.pretrained import catalogue, download, formats, http_download

BUCKETS = 'https://storage.googleapis.com/'


@pytest.mark.parametrize(
  ('name', 'address'),
  [
    ('imagenet21k+imagenet2012/R50+ViT-B_16', 'vit_models/imagenet21k%2Bimagenet2012/R50%2BViT-B_16.npz'),
    ('bit/BiT-M-R50x1', 'bit_models/BiT-M-R50x1.npz'),
    ('bit/distill/R50x1_224', 'bit_models/distill/R50x1_224.npz'),
  ],
)
def test_a_published_name_is_an_address_that_quotes_nothing_but_the_plus(name, address):
  assert catalogue.is_name(name) and catalogue.url(name) == BUCKETS + address


AUGREG = 'augreg/B_16-i21k-300ep-lr_0.001-aug_medium1-wd_0.1-do_0.0-sd_0.0'


def test_names_outside_the_grammar_of_augreg_are_corrected():
  transfer = AUGREG + '--imagenet2012-steps_20k-lr_0.03-res_384'
  for name in (
    AUGREG,
    transfer,
    AUGREG + '.npz',
    'augreg/B_16',
    AUGREG + '--oxford_iiit_pet-steps_0k-lr_0.01-res_224',
  ):
    assert catalogue.in_grammar(name), name
  assert catalogue.url('augreg/B_16') == catalogue.url(AUGREG) == catalogue.url(AUGREG + '.npz')
  wrong = {
    AUGREG.replace('medium1', 'mediun1'): AUGREG,
    AUGREG.replace('B_16', 'b16'): AUGREG,
    AUGREG.replace('-wd_0.1', ''): AUGREG,
    'augreg/R50_L_32-i21k': 'augreg/R50_L_32-i21k-300ep-lr_0.001-aug_medium1-wd_0.1-do_0.1-sd_0.1',
    transfer.replace('res_384', 'res384'): transfer,
  }
  for name, meant in wrong.items():
    with pytest.raises(UserError, match='did you mean ' + re.escape(meant)):
      download.local_file(name)


@pytest.mark.parametrize(
  ('source', 'said'),
  [
    ('ViT-B_16', 'did you mean imagenet21k/ViT-B_16'),
    ('BiT-M-R101x3', 'did you mean bit/BiT-M-R101x3'),
    ('runs/nothing', 'There is no checkpoint runs/nothing'),
    (
      'google/vit-base',
      'There is no checkpoint google/vit-base; .* hf:google/vit-base is not in the cache',
    ),
    ('vit_base_patch16_224', 'name one with its tag, vit_base_patch16_224.augreg_in21k_ft_in1k'),
    (
      'deit3_small_patch16_384.fb_in1k',
      r'check the path\. hf:timm/deit3_small_patch16_384.fb_in1k is not in',
    ),
  ],
)
def test_a_source_that_is_nowhere_offers_the_nearest(monkeypatch, tmp_path, source, said):
  monkeypatch.chdir(tmp_path)
  requests = []
  monkeypatch.setattr(http_download, 'download', lambda *request: requests.append(request))
  with pytest.raises(UserError, match=said):
    formats.read(source)
  assert not requests


@pytest.mark.parametrize(
  ('name', 'said'),
  [
    ('modell.npz', r'did you mean .*model\.npz'),
    ('nowhere', r'There is no checkpoint .*/nowhere; check the path\.'),
    ('x.npz', r'There is no checkpoint .*/x\.npz; check the path\.'),
  ],
)
def test_a_missing_path_offers_the_file_beside_it_that_is_like_it_and_no_other(tmp_path, name, said):
  for other in ('model.npz', 'newcomer', 'w', 'ov.py'):
    (tmp_path / other).touch()
  with pytest.raises(UserError, match=said):
    formats.read(tmp_path / name)


def test_a_folder_of_runs_offers_them(tmp_path):
  for run in ('a', 'b'):
    (tmp_path / run / 'checkpoints').mkdir(parents=True)
  with pytest.raises(UserError, match=r'is a folder of runs; did you mean .*/a or .*/b\?'):
    formats.read(tmp_path)
