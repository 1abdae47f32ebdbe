"""Another head, resolution or number of channels: the original's results, and every tensor accounted for."""

import dataclasses

import cv2
import jax
import numpy as np
import pytest
from PIL import Image
from released_files import path, tensors

import vit_jax
from vit_jax import config, pytrees
from vit_jax.errors import UserError
from vit_jax.pretrained import position_resize, released
from vit_jax.pretrained.adapt import adapt

POSITIONS = ('4to6_cls', '4to6_nocls', '6to4_cls', '7to12_cls', '14to24_cls', 'ramp4to6')


@pytest.mark.parametrize('case', POSITIONS)
def test_positions_as_the_original_resizes_them(golden, case):
  cases = tensors(golden / 'g_posemb.npz')
  old, new, token = cases[f'{case}/in'], cases[f'{case}/out'], case.endswith('_cls')
  sides = [round((x.shape[1] - token) ** 0.5) for x in (old, new)]
  found = position_resize.resize(
    old, (sides[0],) * 2, (sides[1],) * 2, old_class_token=token, new_class_token=token, method='linear'
  )
  assert found.shape == new.shape
  np.testing.assert_allclose(found, new, rtol=0, atol=1e-5)


def resize(grid: np.ndarray, size: tuple[int, int], method: str) -> np.ndarray:
  """(h, w, D) -> (*size, D)."""
  result = position_resize.resize(
    grid.reshape(1, -1, grid.shape[-1]),
    grid.shape[:2],
    size,
    old_class_token=False,
    new_class_token=False,
    method=method,
  )
  return result.reshape(*size, -1)


@pytest.mark.parametrize('size', [(6, 9), (3, 2), (5, 7), (1, 1), (10, 4)])
def test_other_methods_against_other_libraries(size):
  grid = np.random.default_rng(0).standard_normal((5, 7, 3)).astype(np.float32)
  for method, flag in (('bilinear', cv2.INTER_LINEAR), ('bicubic', cv2.INTER_CUBIC)):
    expected = cv2.resize(grid, size[::-1], interpolation=flag)  # half-pixel centres, a = -0.75
    np.testing.assert_allclose(resize(grid, size, method), expected, rtol=0, atol=1e-5)
  planes = [Image.fromarray(grid[..., channel], mode='F') for channel in range(3)]
  expected = np.stack([plane.resize(size[::-1], Image.Resampling.BICUBIC) for plane in planes], axis=-1)
  np.testing.assert_allclose(resize(grid, size, 'bicubic_antialias'), expected, rtol=0, atol=1e-5)


def test_a_class_token_comes_and_goes():
  embedding = np.arange(1, 11, dtype=np.float32).reshape(1, 5, 2)
  change = lambda old, new: position_resize.resize(
    embedding[:, not old :], (2, 2), (2, 2), old_class_token=old, new_class_token=new, method='linear'
  )
  np.testing.assert_array_equal(change(True, False), embedding[:, 1:])
  added = change(False, True)
  np.testing.assert_array_equal(added[:, 1:], embedding[:, 1:])
  assert not added[0, 0].any()


@pytest.mark.parametrize(('case', 'keep'), [('norep', False), ('rep32', True)])
def test_fine_tuning_begins_as_in_the_original(golden, case, keep):
  expected = tensors(golden / f'h_adapt_{case}.io.npz')
  file = path(golden, 'c_vit_token_rep32')
  model = vit_jax.load(file, image_size=48, num_classes=5, keep_representation=keep)
  with jax.default_matmul_precision('highest'):
    head_input = model.pool(model.features(expected['images']))
    if keep:
      head_input = model.representation(head_input)
  np.testing.assert_allclose(head_input, expected['pre_logits_preact'], rtol=0, atol=1e-5)
  np.testing.assert_allclose(model.position_embedding[...], expected['pos_embedding'], rtol=0, atol=1e-5)
  np.testing.assert_array_equal(model.head.kernel[...], expected['head_kernel'])
  np.testing.assert_array_equal(model.head.bias[...], expected['head_bias'])
  assert (model.representation is None) == (not keep)


def adapted(golden, name='c_vit_token_rep32', *, size=(32, 32), channels=3, classes=10, init=None, **changes):
  """(arrays, report, the checkpoint) of a fixture for a model that differs from it by `changes`."""
  portable = released.read(path(golden, name, 'linen'))
  model = dataclasses.replace(portable.model, **changes)
  _, shapes = pytrees.shapes(model, size, channels, classes)
  arrays, report = adapt(portable, shapes, size, init or config.InitConfig())
  listed = [*report.loaded, *(text.split(' ')[0] for text in (*report.resized, *report.reinitialised))]
  assert sorted(listed) == sorted(shapes)
  source = pytrees.flatten(portable.params)
  ignored = {text.split(' ')[0] for text in report.ignored}
  assert {*report.loaded, *(text.split(' ')[0] for text in report.resized)} | ignored == source.keys()
  for parameter, array in arrays.items():
    assert array.shape == shapes[parameter].shape
  return arrays, report, source


def test_every_tensor_is_in_the_report(golden):
  arrays, report, source = adapted(golden, pre_logits_size=None, size=(48, 32), classes=7)
  assert report.resized == ('position_embedding (1, 17, 64) → (1, 25, 64) (linear, 4 × 4 → 6 × 4)',)
  assert report.reinitialised == ('head/bias (7,)', 'head/kernel (64, 7)')
  assert 'representation/kernel (64, 32)' in report.ignored and 'head/kernel (32, 10)' in report.ignored
  assert arrays['norm/scale'] is source['norm/scale']
  assert 'head/kernel' not in arrays
  text = str(report)
  assert 'loaded: 21 tensors' in text and 'reinitialised: head/bias (7,)' in text


def test_a_square_that_becomes_an_oblong_of_as_many_patches(golden):
  arrays, report, source = adapted(golden, size=(16, 64), init=config.InitConfig(reinitialise=()))
  assert report.resized == ('position_embedding (1, 17, 64) → (1, 17, 64) (linear, 4 × 4 → 2 × 8)',)
  assert not np.array_equal(arrays['position_embedding'], source['position_embedding'])


def test_all_is_kept_where_nothing_changes(golden):
  arrays, report, source = adapted(golden, init=config.InitConfig(reinitialise=(), ignore=()))
  assert not report.changes()
  assert all(arrays[name] is array for name, array in source.items())


def test_without_the_class_token(golden):
  init = config.InitConfig(ignore=('^representation/', '^class_token$'))
  arrays, report, source = adapted(golden, pool='gap', pre_logits_size=None, init=init)
  assert report.resized == ('position_embedding (1, 17, 64) → (1, 16, 64) (class token dropped)',)
  np.testing.assert_array_equal(arrays['position_embedding'], source['position_embedding'][:, 1:])


def test_with_a_new_class_token(golden):
  init = config.InitConfig(reinitialise=('^head/', '^class_token$'))
  _, report, _ = adapted(golden, 'b_vit_gap', pool='token', init=init)
  assert 'class_token (1, 1, 64)' in report.reinitialised
  assert 'class token added' in report.resized[0]


@pytest.mark.parametrize(
  ('name', 'kernel'), [('a_vit_token', 'patch_embedding/kernel'), ('d1_hybrid_1_1_w05', 'stem/root/kernel')]
)
def test_gray_images(golden, name, kernel):
  size = (32, 32) if name[0] == 'a' else (64, 64)
  arrays, report, source = adapted(golden, name, size=size, channels=1)
  np.testing.assert_allclose(arrays[kernel], source[kernel].sum(axis=2, keepdims=True), rtol=0, atol=1e-6)
  assert report.resized[0].startswith(f'{kernel} ') and 'summed over 3 channels' in report.resized[0]
  gray = np.random.default_rng(0).uniform(-1, 1, (*source[kernel].shape[:2], 1))
  colour = np.repeat(gray, 3, axis=2)
  np.testing.assert_allclose(
    np.einsum('hwc,hwcd->d', gray, arrays[kernel]),
    np.einsum('hwc,hwcd->d', colour, source[kernel]),
    atol=1e-5,
  )


def test_colour_from_gray(golden):
  portable = released.read(path(golden, 'a_vit_token'))
  kernel = portable.params['patch_embedding']['kernel'][:, :, :1]
  portable.params['patch_embedding']['kernel'] = kernel
  _, shapes = pytrees.shapes(portable.model, (32, 32), 3, 10)
  arrays, report = adapt(portable, shapes, (32, 32), config.InitConfig())
  np.testing.assert_allclose(arrays['patch_embedding/kernel'].sum(axis=2), kernel[:, :, 0], atol=1e-6)
  assert 'spread over 3' in report.resized[0]


@pytest.mark.parametrize(
  ('changes', 'said'),
  [
    (
      {'classes': 7, 'init': config.InitConfig(reinitialise=())},
      r'head/bias is \(10,\) in the checkpoint',
    ),
    ({'pre_logits_size': None, 'init': config.InitConfig(ignore=())}, 'no place for representation/bias'),
    ({'layer_scale': 0.1}, 'has no blocks/attention_scale, which the model needs'),
    ({'depth': 3}, r'is \(2, .*\) in the checkpoint and \(3, '),
    ({'pool': 'gap', 'pre_logits_size': None}, 'no place for class_token'),
    ({'pool': 'map', 'class_token': True}, 'has no map_pool/'),
    ({'patch': 16}, 'patch_embedding/kernel is'),
  ],
)
def test_what_is_unexpected_is_an_error(golden, changes, said):
  with pytest.raises(UserError, match=said) as error:
    adapted(golden, **changes)
  assert 'config.init' in str(error.value)


def test_a_mixer_has_one_resolution(golden):
  with pytest.raises(UserError, match='an MLP-Mixer works at one resolution only'):
    vit_jax.load(path(golden, 'e_mixer', 'linen'), image_size=48)
