"""Released .npz files: the logits of the original code, every naming, and every kind of bad file."""

import dataclasses
import re
import zipfile

import jax
import ml_dtypes
import numpy as np
import pytest
from flax import nnx
from released_files import CASES, FIXTURES, assert_same, logits, path, read, tensors, write

import vit_jax
from vit_jax.foundation.errors import UserError
from vit_jax.models.mixer import MixerConfig
from vit_jax.models.parts.stems import ResNetStem
from vit_jax.pretrained import released
from vit_jax.pretrained.base import FORMATS


def stem_stages(stem, images):
  """The feature maps of a hybrid's ResNet on the way."""
  stages = {'act/gn_root': stem.root_norm(stem.root(images))}
  y = nnx.max_pool(jax.nn.relu(stages['act/gn_root']), (3, 3), (2, 2), 'SAME')
  for number in range(1, stem.stages + 1):
    y = stages[f'act/block{number}'] = getattr(stem, f'block{number}')(y, remat=None, unroll=False)
  return stages


@jax.jit
def found(model, images):
  """What the original code saved of a forward pass: {its name: ours}."""
  if isinstance(model.config, MixerConfig):
    tokens = {'act/stem': model.embed(images), 'act/pre_head_layer_norm': model.features(images)}
    return tokens | {'logits': model(images)}
  tokens = model.features(images)
  pooled = model.pool(tokens)
  stages = {
    'act/embedding': model.patch_embedding(model.stem(images)),
    'act/Transformer': tokens,
    'act/pre_logits': pooled if model.pre_logits is None else model.pre_logits(pooled),
    'logits': model(images),
  }
  return stages | stem_stages(model.stem, images) if isinstance(model.stem, ResNetStem) else stages


@pytest.mark.slow
@pytest.mark.parametrize('name', FIXTURES)
def test_stages_and_logits_are_those_of_the_original_in_both_namings(golden, name):
  io, files = tensors(golden / f'{name}.io.npz'), [path(golden, *case) for case in CASES if case[0] == name]
  with jax.default_matmul_precision('highest'):
    stages = found(vit_jax.load(files[0], **FIXTURES[name]).module, io['images'])
  assert set(stages) | {'images'} == set(io) and stages['logits'].shape == io['logits'].shape
  for stage, value in stages.items():
    value = value[: len(io[stage])].reshape(io[stage].shape)  # of the largest maps, the first image only
    np.testing.assert_allclose(value, io[stage], rtol=0, atol=1e-5, err_msg=stage)
  one, *others = (read(file, **FIXTURES[name]).params for file in files)
  for other in others:
    jax.tree.map(np.testing.assert_array_equal, other, one)


@pytest.mark.parametrize(('name', 'naming'), CASES)
def test_round_trip_gives_the_same_bits_in_the_naming_of_2020(golden, tmp_path, name, naming):
  write(read(path(golden, name, naming), **FIXTURES[name]), tmp_path / 'copy.npz')
  assert_same(path(golden, name, 'linen' if name == 'e_mixer' else '2020'), tmp_path / 'copy.npz')


@pytest.mark.parametrize(
  ('prefix', 'beside'),
  [
    ('opt/target/', {'opt/state/step': np.zeros(1, np.float32)}),
    ('params/', {}),
    ('params/img/', {'params/txt/head/kernel': np.zeros((2, 2), np.float32), 'params/t': np.zeros(1, 'f4')}),
    ('img/', {'txt/head/kernel': np.zeros((2, 2), np.float32), 't': np.zeros(1, np.float32)}),
  ],
)
def test_prefixes_are_taken_off_and_what_lies_beside_the_model_is_noted(golden, tmp_path, prefix, beside):
  source = tensors(path(golden, 'a_vit_token'))
  np.savez(tmp_path / 'x.npz', **{prefix + key: array for key, array in source.items()}, **beside)
  io = tensors(golden / 'a_vit_token.io.npz')
  np.testing.assert_allclose(logits(tmp_path / 'x.npz', io['images']), io['logits'], rtol=0, atol=1e-5)
  notes = ' '.join(read(tmp_path / 'x.npz').notes)
  assert ('beside the model' in notes) == bool(beside)


def test_bfloat16_float16_and_compressed_files_are_read_into_float32(golden, tmp_path):
  source = tensors(path(golden, 'a_vit_token'))
  for dtype in (ml_dtypes.bfloat16, np.float16):
    np.savez_compressed(tmp_path / 'x.npz', **{key: array.astype(dtype) for key, array in source.items()})
    pretrained = read(tmp_path / 'x.npz')
    kernel = pretrained.params['head']['kernel']
    assert kernel.dtype == np.float32
    np.testing.assert_array_equal(kernel, source['head/kernel'].astype(dtype).astype(np.float32))
    assert any(np.dtype(dtype).name in note for note in pretrained.notes)
  stored = np.load(tmp_path / 'x.npz')['head/kernel']
  assert stored.dtype == np.float16


def test_arrays_in_fortran_order_are_read(golden, tmp_path):
  source = tensors(path(golden, 'a_vit_token'))
  np.savez(tmp_path / 'x.npz', **{key: np.asfortranarray(array) for key, array in source.items()})
  pretrained = read(tmp_path / 'x.npz')
  np.testing.assert_array_equal(pretrained.params['patch_embedding']['kernel'], source['embedding/kernel'])


@pytest.mark.slow
def test_missing_head_and_zero_head_are_noted(golden, tmp_path):
  source = tensors(path(golden, 'c_vit_token_rep32'))
  source['head/kernel'][:], source['head/bias'][:] = 0, 0
  np.savez(tmp_path / 'zero.npz', **source)
  assert 'all zeros' in ' '.join(read(tmp_path / 'zero.npz').notes)
  np.savez(tmp_path / 'none.npz', **{key: a for key, a in source.items() if not key.startswith('head/')})
  pretrained = read(tmp_path / 'none.npz')
  assert pretrained.architecture.num_classes == 0
  model = vit_jax.load(tmp_path / 'none.npz', num_classes=3, keep_pre_logits=True)
  images = tensors(golden / 'c_vit_token_rep32.io.npz')['images']
  assert model(images).shape == (2, 3)
  assert read(path(golden, 'c_vit_token_rep32')).notes == ()


def test_grid_that_is_not_square_needs_its_image_size(golden, tmp_path):
  source = tensors(path(golden, 'a_vit_token'))
  key = 'Transformer/posembed_input/pos_embedding'
  source[key] = source[key][:, :7]
  np.savez(tmp_path / 'x.npz', **source)
  with pytest.raises(UserError, match='6 patches of 8 pixels, which are no square; give the image_size'):
    read(tmp_path / 'x.npz')
  with pytest.raises(UserError, match=r'which image_size \(16, 32\) does not give'):
    read(tmp_path / 'x.npz', image_size=(16, 32))
  assert read(tmp_path / 'x.npz', image_size=(16, 24)).architecture.image_size == (16, 24)


@pytest.mark.parametrize(
  ('size', 'why'), [((16, 32), None), ((16, 64), r'of 4 x 4 patches, a square, and this has 2 x 8; choose')]
)
def test_oblong_grid_is_read_again_or_not_written_where_a_square_would_be_read(size, why, golden, tmp_path):
  pretrained = read(path(golden, 'a_vit_token'))
  width = pretrained.params['position_embedding'].shape[-1]
  table = np.random.default_rng(0).random((1, 1 + size[0] * size[1] // 64, width), np.float32)
  oblong = dataclasses.replace(
    pretrained,
    architecture=dataclasses.replace(pretrained.architecture, image_size=size),
    params=pretrained.params | {'position_embedding': table},
  )
  if why:
    with pytest.raises(UserError, match=why):
      FORMATS['npz']().write(oblong, tmp_path / 'x.npz')
    assert not (tmp_path / 'x.npz').exists()
    return
  assert any(f'image_size={size}' in note for note in FORMATS['npz']().write(oblong, tmp_path / 'x.npz'))
  again = read(tmp_path / 'x.npz', image_size=size)
  assert again.architecture.image_size == size
  np.testing.assert_array_equal(again.params['position_embedding'], table)


@pytest.mark.slow
def test_options_that_no_tensor_tells_change_the_logits(golden):
  io = tensors(golden / 'a_vit_token.io.npz')
  file = path(golden, 'a_vit_token')
  plain = logits(file, io['images'])
  assert np.abs(logits(file, io['images'], activation='gelu') - plain).max() > 1e-5
  assert np.abs(logits(file, io['images'], norm_epsilon=1e-2) - plain).max() > 1e-5
  with pytest.raises(UserError, match='no class token'):
    vit_jax.load(path(golden, 'b_vit_gap'), pool='token')


def published(golden):
  """(name, {key: shape}, parameters) of each file in the list of published ones."""
  text = (golden / 'ckpt_trees_released_naming.txt').read_text()
  for part in text.split('=== ')[1:]:
    title, *lines = part.strip().splitlines()
    tensors, parameters = re.search(r': (\d+) tensors, ([\d,]+) params', title).groups()
    shapes = {}
    for line in lines:
      key, shape = re.fullmatch(r'\s*(\S+)\s+\((.*)\)', line).groups()
      shapes[key] = tuple(int(side) for side in shape.split(',') if side.strip())
    # The list shows the first block only.
    block = {key: shape for key, shape in shapes.items() if re.search('(encoderblock|MixerBlock)_0/', key)}
    depth = (int(tensors) - len(shapes)) // len(block) + 1
    for number in range(1, depth):
      shapes |= {key.replace('_0/', f'_{number}/', 1): shape for key, shape in block.items()}
    assert len(shapes) == int(tensors)
    yield title.split(':')[0], shapes, int(parameters.replace(',', ''))


@pytest.mark.slow
def test_architectures_of_the_published_files_are_read_off_their_shapes(golden):
  names = []
  for name, shapes, parameters in published(golden):
    _, found = released.infer(name, shapes, None)
    ours = found.shapes()
    stacked = sum(leaf.shape[0] - 1 for path, leaf in ours.items() if path.startswith('blocks/'))
    assert len(ours) + stacked == len(shapes), name
    assert sum(int(np.prod(leaf.shape)) for leaf in ours.values()) == parameters, name
    assert found.image_size == ((384, 384) if '384px' in name else (224, 224)), name
    names.append(name)
  assert len(names) == 14


def replaced(golden, tmp_path, **changes):
  """A file in which tensors are another, or missing (None)."""
  source = tensors(path(golden, 'c_vit_token_rep32')) | changes
  np.savez(tmp_path / 'x.npz', **{key: array for key, array in source.items() if array is not None})
  return tmp_path / 'x.npz'


BLOCK = 'Transformer/encoderblock_1/'


@pytest.mark.parametrize(
  ('changes', 'said'),
  [
    ({'cls': None}, 'patches of 8 pixels, which are no square'),
    ({'embedding/kernel': None}, 'has no tensor embedding/kernel'),
    ({BLOCK + 'LayerNorm_2/scale': None}, f'has no tensor {BLOCK}LayerNorm_2/scale'),
    ({'extra': np.zeros(3, np.float32)}, 'has a tensor extra that no model of its kind has'),
    ({'embedding/kernel': np.zeros((8, 9, 3, 64), 'f4')}, 'a patch is a square'),
    ({'embedding/kernel': np.zeros((8, 8, 64), 'f4')}, '4 dimensions are expected'),
    ({'head/bias': np.zeros(9, 'f4')}, r'head/bias of shape \(9,\), where its other sizes call for \(10,\)'),
    (
      {'Transformer/encoderblock_0/MultiHeadDotProductAttention_1/query/kernel': np.zeros((64, 4, 15), 'f4')},
      'do not make up the width of 64',
    ),
    ({'head/bias': np.full(10, np.nan, 'f4')}, 'NaN or infinite values in head/bias'),
    ({'head/bias': np.zeros(10, np.int64)}, 'holds int64 in head/bias'),
  ],
)
def test_bad_tensor_is_one_sentence(golden, tmp_path, changes, said):
  file = replaced(golden, tmp_path, **changes)
  with pytest.raises(UserError, match=said) as error:
    vit_jax.load(file)
  assert str(file) in str(error.value)
  assert '\n' not in str(error.value)


def test_bad_file_is_one_sentence(golden, tmp_path):
  good = path(golden, 'a_vit_token').read_bytes()
  flipped = bytearray(good)
  flipped[len(good) // 2] ^= 255
  with zipfile.ZipFile(tmp_path / 'text.zip', 'w') as archive:
    archive.writestr('README', 'hello')
  cases = {
    'end.npz': (good[:-1], 'is a damaged .npz'),
    'empty.npz': (b'', r'is empty \(0 bytes\)'),
    'page.npz': (b'<html>not found</html>', 'is a web page, not a checkpoint'),
    'flipped.npz': (bytes(flipped), 'is damaged at'),
    'zip.npz': ((tmp_path / 'text.zip').read_bytes(), "holds 'README', which is not an array"),
  }
  for name, (content, said) in cases.items():
    (tmp_path / name).write_bytes(content)
    with pytest.raises(UserError, match=said) as error:
      vit_jax.load(tmp_path / name)
    assert name in str(error.value)
    assert '\n' not in str(error.value)


def test_parameters_without_a_name_in_the_format_are_refused_before_writing(golden, tmp_path):
  pretrained = read(path(golden, 'a_vit_token'))
  blocks = pretrained.params['blocks'] | {'attention_scale': np.ones((2, 64), np.float32)}
  pretrained.params['blocks'] = blocks
  with pytest.raises(UserError, match='no place for blocks/attention_scale'):
    write(pretrained, tmp_path / 'x.npz')
  assert list(tmp_path.iterdir()) == []


def test_options_that_the_file_cannot_hold_are_noted(golden, tmp_path):
  pretrained = read(path(golden, 'a_vit_token'), activation='gelu', norm_epsilon=1e-12)
  notes = write(pretrained, tmp_path / 'x.npz')
  assert "activation='gelu', norm_epsilon=1e-12" in notes[0]
  assert write(read(path(golden, 'a_vit_token')), tmp_path / 'y.npz') == ()
