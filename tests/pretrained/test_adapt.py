"""Another head, resolution or number of channels: the original's results, and every tensor accounted for."""

import dataclasses

import cv2
import jax
import numpy as np
import pytest
from PIL import Image
from released_files import path, read, tensors

import vit_jax
from vit_jax import config
from vit_jax.foundation import pytrees
from vit_jax.foundation.errors import UserError
from vit_jax.models import position_resize
from vit_jax.models.base import Architecture
from vit_jax.models.position_resize import PositionResize
from vit_jax.pretrained.adapt import _with_patches, adapt

POSITIONS = ('4to6_cls', '4to6_nocls', '6to4_cls', '7to12_cls', '14to24_cls', 'ramp4to6')


@pytest.mark.parametrize('case', POSITIONS)
def test_positions_are_resized_as_by_the_original(golden, case):
  cases = tensors(golden / 'g_posemb.npz')
  old, new, token = cases[f'{case}/in'], cases[f'{case}/out'], int(case.endswith('_cls'))
  sides = [round((x.shape[1] - token) ** 0.5) for x in (old, new)]
  patches = position_resize.resize(old[0, token:], (sides[0],) * 2, (sides[1],) * 2, 'linear')
  found = np.concatenate([old[0, :token], patches])[None]
  assert found.shape == new.shape
  np.testing.assert_allclose(found, new, rtol=0, atol=1e-5)


def resize(grid: np.ndarray, size: tuple[int, int], method: PositionResize) -> np.ndarray:
  """(h, w, D) -> (*size, D)."""
  table = grid.reshape(-1, grid.shape[-1])
  return position_resize.resize(table, grid.shape[:2], size, method).reshape(*size, -1)


@pytest.mark.parametrize('size', [(6, 9), (3, 2), (5, 7), (1, 1), (10, 4)])
def test_other_methods_agree_with_opencv_and_pillow(size):
  grid = np.random.default_rng(0).standard_normal((5, 7, 3)).astype(np.float32)
  for method, flag in (('bilinear', cv2.INTER_LINEAR), ('bicubic', cv2.INTER_CUBIC)):
    expected = cv2.resize(grid, size[::-1], interpolation=flag)  # half-pixel centres, a = -0.75
    np.testing.assert_allclose(resize(grid, size, method), expected, rtol=0, atol=1e-5)
  planes = [Image.fromarray(grid[..., channel]) for channel in range(3)]
  expected = np.stack([plane.resize(size[::-1], Image.Resampling.BICUBIC) for plane in planes], axis=-1)
  np.testing.assert_allclose(resize(grid, size, 'bicubic_antialias'), expected, rtol=0, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize(('case', 'keep'), [('norep', False), ('rep32', True)])
def test_fine_tuning_begins_as_in_the_original(golden, case, keep):
  expected = tensors(golden / f'h_adapt_{case}.io.npz')
  file = path(golden, 'c_vit_token_rep32')
  model = vit_jax.load(file, image_size=48, num_classes=5, keep_pre_logits=keep).module
  with jax.default_matmul_precision('highest'):
    head_input = model.pool(model.features(expected['images']))
    if keep:
      head_input = model.pre_logits(head_input)
  np.testing.assert_allclose(head_input, expected['pre_logits_preact'], rtol=0, atol=1e-5)
  np.testing.assert_allclose(model.position_embedding[...], expected['pos_embedding'], rtol=0, atol=1e-5)
  np.testing.assert_array_equal(model.head.kernel[...], expected['head_kernel'])
  np.testing.assert_array_equal(model.head.bias[...], expected['head_bias'])
  assert (model.pre_logits is None) == (not keep)


def adapted(golden, name='c_vit_token_rep32', *, size=(32, 32), channels=3, classes=10, init=None, **changes):
  """(arrays, report, the checkpoint) of a fixture for a model that differs from it by `changes`."""
  pretrained = read(path(golden, name, 'linen'))
  model = dataclasses.replace(pretrained.architecture.model, **changes)
  architecture = Architecture(model, size, channels, classes)
  shapes = architecture.shapes()
  arrays, report = adapt(pretrained, architecture, init or config.InitConfig())
  listed = [*report.loaded, *(text.split(' ')[0] for text in (*report.resized, *report.reinitialised))]
  assert sorted(listed) == sorted(shapes)
  source = pytrees.flatten(pretrained.params)
  ignored = {text.split(' ')[0] for text in report.ignored}
  assert {*report.loaded, *(text.split(' ')[0] for text in report.resized)} | ignored == source.keys()
  for parameter, array in arrays.items():
    assert array.shape == shapes[parameter].shape
  return arrays, report, source


def test_every_tensor_is_in_the_report(golden):
  arrays, report, source = adapted(golden, pre_logits_size=None, size=(48, 32), classes=7)
  assert report.resized == ('position_embedding (1, 17, 64) → (1, 25, 64) (linear, 4 × 4 → 6 × 4)',)
  assert report.reinitialised == ('head/bias (7,)', 'head/kernel (64, 7)')
  assert 'pre_logits/kernel (64, 32)' in report.ignored and 'head/kernel (32, 10)' in report.ignored
  assert arrays['norm/scale'] is source['norm/scale']
  assert 'head/kernel' not in arrays
  text = str(report)
  assert 'loaded: 21 tensors' in text and 'reinitialised: head/bias (7,)' in text


def test_square_grid_is_resized_to_an_oblong_of_as_many_patches(golden):
  arrays, report, source = adapted(golden, size=(16, 64), init=config.InitConfig(reinitialise=()))
  assert report.resized == ('position_embedding (1, 17, 64) → (1, 17, 64) (linear, 4 × 4 → 2 × 8)',)
  assert not np.array_equal(arrays['position_embedding'], source['position_embedding'])


def test_arrays_are_passed_on_where_nothing_changes(golden):
  arrays, report, source = adapted(golden, init=config.InitConfig(reinitialise=(), ignore=()))
  assert not report.changes()
  assert all(arrays[name] is array for name, array in source.items())


def test_dropped_class_token_takes_its_position_along(golden):
  init = config.InitConfig(ignore=('^pre_logits/', '^class_token$'))
  arrays, report, source = adapted(golden, pool='gap', pre_logits_size=None, init=init)
  assert report.resized == ('position_embedding (1, 17, 64) → (1, 16, 64) (class token dropped)',)
  np.testing.assert_array_equal(arrays['position_embedding'], source['position_embedding'][:, 1:])


def test_new_class_token_gets_a_position_of_zeros(golden):
  init = config.InitConfig(reinitialise=('^head/', '^class_token$'))
  arrays, report, source = adapted(golden, 'b_vit_gap', pool='token', init=init)
  assert 'class_token (1, 1, 64)' in report.reinitialised
  assert 'class token added' in report.resized[0]
  assert not arrays['position_embedding'][:, 0].any()
  np.testing.assert_array_equal(arrays['position_embedding'][:, 1:], source['position_embedding'])


def test_head_of_the_distillation_token_begins_anew_with_the_other(golden):
  init = config.InitConfig(reinitialise=('^head/', '^distillation_token'))
  _, report, _ = adapted(golden, 'a_vit_token', distillation_token=True, init=init)
  anew = {text.split()[0] for text in report.reinitialised}
  assert anew == {
    'head/kernel',
    'head/bias',
    'distillation_head/kernel',
    'distillation_head/bias',
    'distillation_token',
  }


@pytest.mark.parametrize(
  ('name', 'kernel'), [('a_vit_token', 'patch_embedding/kernel'), ('d1_hybrid_1_1_w05', 'stem/root/kernel')]
)
def test_kernel_for_gray_images_is_the_sum_over_colours(golden, name, kernel):
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


def test_kernel_for_colours_spreads_that_for_gray(golden):
  pretrained = read(path(golden, 'a_vit_token'))
  kernel = pretrained.params['patch_embedding']['kernel'][:, :, :1]
  pretrained.params['patch_embedding']['kernel'] = kernel
  arrays, report = adapt(pretrained, pretrained.architecture, config.InitConfig())
  np.testing.assert_allclose(arrays['patch_embedding/kernel'].sum(axis=2), kernel[:, :, 0], atol=1e-6)
  assert 'spread over 3' in report.resized[0]


@pytest.mark.parametrize(
  ('changes', 'said'),
  [
    ({'classes': 7, 'init': config.InitConfig(reinitialise=())}, r'head/bias is \(10,\) in the checkpoint'),
    ({'pre_logits_size': None, 'init': config.InitConfig(ignore=())}, 'no place for pre_logits/bias'),
    ({'layer_scale': 0.1}, 'has no blocks/attention_scale, which the model needs'),
  ],
)
def test_tensor_without_a_counterpart_names_the_option_that_allows_it(golden, changes, said):
  with pytest.raises(UserError, match=said) as error:
    adapted(golden, **changes)
  assert 'config.init' in str(error.value)


def test_mixer_refuses_another_resolution(golden):
  with pytest.raises(UserError, match='an MLP-Mixer works at one resolution only'):
    vit_jax.load(path(golden, 'e_mixer', 'linen'), image_size=48)


def resize_matrix(old: int, new: int) -> np.ndarray:
  """(new², old²), row by row: OpenCV's bilinear resize of each unit image."""
  units = np.eye(old * old).reshape(-1, old, old)
  return np.stack(
    [cv2.resize(unit, (new, new), interpolation=cv2.INTER_LINEAR).ravel() for unit in units], axis=1
  )


@pytest.mark.parametrize('size', [12, 4])
def test_patch_embedding_is_resized_by_the_pseudo_inverse(size):
  """FlexiViT (arXiv 2212.08013), equation 6 and its proposition: bigger patches, resized, embed to the same."""
  kernel = np.random.default_rng(0).standard_normal((8, 8, 3, 5)).astype(np.float32)
  resized = _with_patches(kernel, size)
  matrix = resize_matrix(8, size)
  expected = np.linalg.pinv(matrix.T) @ kernel.reshape(64, -1)
  np.testing.assert_allclose(resized.reshape(size**2, -1), expected, atol=1e-5)
  if size > 8:
    patch = np.random.default_rng(1).standard_normal((64, 15))
    embedded = np.einsum('po,po->o', matrix @ patch, resized.reshape(size**2, 15))
    np.testing.assert_allclose(embedded, np.einsum('po,po->o', patch, kernel.reshape(64, 15)), atol=1e-4)


def test_a_model_is_loaded_with_other_patches(golden):
  """The grid of positions follows."""
  file = path(golden, 'c_vit_token_rep32')
  own = vit_jax.load(file)
  model = vit_jax.load(file, patch=own.config.patch // 2)
  images = np.zeros((1, *own.preprocess.size, 3), np.float32)
  assert model.features(images).shape[1] - 1 == 4 * (own.features(images).shape[1] - 1)


def test_fixed_positions_of_a_checkpoint_are_those_that_the_model_computes(golden):
  """Formats read them as a table; a model that computes the same ones has a place for it, and at another size none."""
  pretrained = read(path(golden, 'c_vit_token_rep32', 'linen'))
  model = dataclasses.replace(pretrained.architecture.model, position='sincos2d')
  table = model.fixed_positions(model.grid(pretrained.architecture.image_size))
  own = pytrees.flatten(pretrained.params)
  computed = dataclasses.replace(pretrained, params=pytrees.unflatten({**own, 'position_embedding': table}))
  architecture = Architecture(model, pretrained.architecture.image_size, 3, 10)
  init = config.InitConfig(reinitialise=('head/.*',))
  arrays, report = adapt(computed, architecture, init)
  assert 'position_embedding' not in arrays and any('position_embedding' in each for each in report.ignored)
  with pytest.raises(UserError, match='no place for position_embedding'):  # learned ones are others
    adapt(pretrained, architecture, init)
  larger = Architecture(model, (64, 64), 3, 10)
  with pytest.raises(
    UserError, match=r"no place for position_embedding .*set config.model.position='learned'"
  ):
    adapt(computed, larger, init)
  kept = adapt(computed, dataclasses.replace(larger, model=model.with_learned_positions()), init)[0]
  computed_anew = model.fixed_positions(model.grid((64, 64)))
  assert kept['position_embedding'].shape == computed_anew.shape != table.shape
  assert np.abs(kept['position_embedding'] - computed_anew).max() > 0.5


def test_resizing_of_offsets_is_refused_for_other_positions(golden):
  with pytest.raises(UserError, match="'geometric' is for relative positions, not for position_embedding"):
    vit_jax.load(golden / 'b_vit_gap.released.npz', position_resize='geometric')
  with pytest.raises(UserError, match=r"model\.position_resize 'geometric' goes with position 'relative'"):
    config.ViTConfig(position_resize='geometric').check('config.model')
