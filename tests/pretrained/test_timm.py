"""timm's Vision Transformers, against timm itself."""

import dataclasses
import json
import re
import shlex
import sys

import jax
import numpy as np
import pytest
from PIL import Image
from released_files import read, write_folder
from timm_peers import REASON, SIZES, save, timm
from transformers_peers import (
  make_images,
  make_ours,
  make_pretrained,
  randomise,
  run,
  safetensors_numpy,
  to_torch,
  torch,
)

import vit_jax
from vit_jax import config
from vit_jax.foundation.errors import UserError
from vit_jax.models.base import Architecture
from vit_jax.pretrained import formats, timm_defaults, timm_derived, timm_export
from vit_jax.pretrained.base import Pretrained

data = pytest.importorskip('timm.data', reason=REASON)

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures('precise')]  # it compares with another framework


PEERS = {
  'token': {'img_size': (16, 32)},
  'no bias': {'qkv_bias': False, 'in_chans': 1},
  'scale': {'init_values': 0.1, 'act_layer': 'gelu_tanh'},
  'no head': {'num_classes': 0},
  'mean': {'global_pool': 'avg', 'class_token': False, 'fc_norm': False},
  'mean of all': {'global_pool': 'avg', 'fc_norm': False, 'pool_include_prefix': True},
  'map': {'global_pool': 'map', 'class_token': False},
  'map of all': {'global_pool': 'map', 'pool_include_prefix': True},
  'registers': {'reg_tokens': 3, 'no_embed_class': True, 'init_values': 0.1},
  'placed registers': {'reg_tokens': 3},
  'query-key norm': {'qk_norm': True, 'init_values': 0.1},
  'class without position': {'no_embed_class': True},
  'distilled': {'architecture': 'deit_base_distilled_patch16_224', 'img_size': (16, 32)},
  'deit': {'architecture': 'deit_base_patch16_224'},
  'deit3': {'architecture': 'deit3_base_patch16_224'},
  'every token': {'global_pool': '', 'reg_tokens': 2, 'no_embed_class': True},
  'mean beside registers': {'global_pool': 'avg', 'class_token': False, 'reg_tokens': 2, 'fc_norm': False},
}


def make_peer(name: str):
  options = {'architecture': 'vit_base_patch16_224', **SIZES, **PEERS[name]}
  return randomise(timm.create_model(options.pop('architecture'), **options), seed=0)


def assert_same(pretrained: Pretrained, peer) -> None:
  images = make_images(pretrained)
  (_, *ours_states), ours_final, ours_pooled, ours_logits = run(make_ours(pretrained), images)
  theirs = to_torch(images)
  with torch.no_grad():
    final, states = peer.forward_intermediates(
      theirs, indices=list(range(len(ours_states))), return_prefix_tokens=True, output_fmt='NLC'
    )
    logits = peer(theirs)
  before = final.shape[1] - states[0][0].shape[1] if isinstance(states[0], tuple) else 0
  for i, state in enumerate(states):
    patches = state[0] if isinstance(state, tuple) else state
    np.testing.assert_allclose(ours_states[i][:, before:], patches, atol=1e-4, rtol=0)
  np.testing.assert_allclose(ours_final, final, atol=1e-4, rtol=0)
  if pretrained.architecture.num_classes:
    np.testing.assert_allclose(ours_logits, logits, atol=1e-4, rtol=0)
  else:
    np.testing.assert_allclose(ours_pooled, logits, atol=1e-4, rtol=0)


@pytest.mark.parametrize('name', PEERS)
def test_read_and_written_again_it_is_the_same_model_to_the_bit(name, tmp_path):
  """The hidden states and logits of timm, which loads what we write."""
  peer = make_peer(name)
  save(peer, tmp_path / 'theirs')
  pretrained = read(tmp_path / 'theirs')
  assert_same(pretrained, peer)
  write_folder(pretrained, tmp_path / 'ours', kind='timm')
  assert_same(pretrained, timm.create_model(f'local-dir:{tmp_path / "ours"}', pretrained=True).eval())
  if name != 'placed registers':  # where the class token takes up its position
    jax.tree.map(np.testing.assert_array_equal, read(tmp_path / 'ours').params, pretrained.params)
  if name in ('token', 'scale', 'map', 'registers', 'mean', 'deit'):
    theirs, ours = (
      safetensors_numpy.load_file(tmp_path / n / 'model.safetensors') for n in ('theirs', 'ours')
    )
    assert theirs.keys() == ours.keys()
    for key in theirs:
      np.testing.assert_array_equal(ours[key], theirs[key], err_msg=key, strict=True)


@pytest.mark.parametrize('size', [(24, 24), (24, 48), (64, 64)])
@pytest.mark.parametrize(
  'architecture',
  [
    *('vit_base_patch16_224', 'flexivit_small', 'vit_base_patch16_radio_v3', 'vit_so400m_patch16_radio_v4'),
    *('beit_base_patch16_224', 'beitv2_base_patch16_224'),
  ],
)
def test_positions_of_another_size_are_those_of_timm(architecture, size, tmp_path):
  sizes = SIZES | {'img_size': 32}
  save(randomise(timm.create_model(architecture, **sizes), seed=0), tmp_path)
  peer = timm.create_model(f'local-dir:{tmp_path}', pretrained=True, **sizes | {'img_size': size}).eval()
  ours, images = vit_jax.load(tmp_path, image_size=size), np.random.default_rng(0).normal(size=(2, *size, 3))
  with torch.no_grad():
    expected = peer(to_torch(images.astype(np.float32)))
  np.testing.assert_allclose(ours(images.astype(np.float32)), expected, atol=1e-4, rtol=0)


def test_each_head_of_a_distilled_deit_is_that_of_timm(tmp_path):
  peer = make_peer('distilled')
  save(peer, tmp_path)
  pretrained = read(tmp_path)
  assert pretrained.architecture.model.distillation_token and not pretrained.notes
  images = make_images(pretrained)
  ours = make_ours(pretrained).distillation_logits(images)
  peer.set_distilled_training()
  with torch.no_grad():
    theirs = peer.train()(to_torch(images))
  for mine, yours in zip(ours, theirs, strict=True):
    np.testing.assert_allclose(mine, yours, atol=1e-4, rtol=0)


def test_a_distillation_token_without_a_head_is_read_as_a_register(tmp_path):
  peer = make_peer('distilled')
  peer.reset_classifier(0)
  save(peer, tmp_path)
  pretrained = read(tmp_path)
  assert pretrained.architecture.model.register_tokens == 1
  assert any('has no head' in note for note in pretrained.notes)
  images = make_images(pretrained)
  with torch.no_grad():
    final = peer.forward_features(to_torch(images))
  np.testing.assert_allclose(run(make_ours(pretrained), images)[1], final, atol=1e-4, rtol=0)


@pytest.mark.parametrize(
  ('change', 'said'),
  [
    (lambda tensors: tensors.pop('cls_token'), 'goes with a class token'),
    (lambda tensors: tensors.update(reg_token=tensors['dist_token']), 'and no register tokens'),
  ],
)
def test_a_head_of_a_distillation_token_without_its_tokens_is_refused(change, said, tmp_path):
  save(make_peer('distilled'), tmp_path)
  tensors = safetensors_numpy.load_file(tmp_path / 'model.safetensors')
  change(tensors)
  safetensors_numpy.save_file(tensors, tmp_path / 'model.safetensors')
  with pytest.raises(UserError, match=said):
    read(tmp_path)


def test_a_written_distilled_model_takes_another_number_of_classes(tmp_path):
  save(make_peer('distilled'), tmp_path / 'theirs')
  write_folder(read(tmp_path / 'theirs'), tmp_path / 'ours', kind='timm')
  peer = timm.create_model(f'local-dir:{tmp_path / "ours"}', pretrained=True, num_classes=3)
  assert peer.head.out_features == peer.head_dist.out_features == 3


def test_bare_file_is_read_with_the_heads_of_its_width(tmp_path):
  """Nothing but tensors: heads, image and pooling as timm's models of that width have them."""
  options = {'embed_dim': 192, 'num_heads': 3, 'depth': 1, 'patch_size': 8, 'img_size': 24, 'num_classes': 2}
  PEERS['tiny'] = options
  peer = make_peer('tiny')
  del PEERS['tiny']
  path = tmp_path / 'vit_tiny.safetensors'
  safetensors_numpy.save_file({key: value.numpy() for key, value in peer.state_dict().items()}, path)
  pretrained = read(path)
  assert_same(pretrained, peer)
  assert any('24 x 24, a square' in note for note in pretrained.notes)
  assert any("heads 3, pool 'token'" in note and "activation 'gelu'" in note for note in pretrained.notes)
  told = read(path, heads=6, activation='gelu_tanh')
  assert told.architecture.model.heads == 6 and not any("activation 'gelu'" in note for note in told.notes)


def test_name_of_the_architecture_tells_heads_and_activation(tmp_path):
  save(make_peer('token'), tmp_path)
  path = tmp_path / 'config.json'
  values = json.loads(path.read_text())
  del values['model_args']
  for name, heads, activation in (
    ('vit_base_patch16_gap_224', 16, 'gelu'),
    ('vit_large_patch16_siglip_512', 1, 'gelu_tanh'),
    ('vit_large_patch16_siglip_256', 1, 'gelu'),
  ):
    path.write_text(json.dumps(values | {'architecture': name}))
    pretrained = read(tmp_path)
    assert (pretrained.architecture.model.heads, pretrained.architecture.model.activation) == (
      heads,
      activation,
    )


@pytest.mark.parametrize('name', ['mixer_s32_224', 'resnetv2_50x1_bit', 'tf_efficientnet_b0'])
def test_a_lone_file_that_tells_too_little_is_refused(name, tmp_path):
  tensors = {key: value.numpy() for key, value in timm.create_model(name).state_dict().items()}
  safetensors_numpy.save_file(tensors, tmp_path / 'model.safetensors')
  with pytest.raises(UserError, match=r'has no config\.json beside it'):
    read(tmp_path / 'model.safetensors')


@pytest.mark.parametrize('module', ['vision_transformer', 'deit', 'eva', 'beit', 'naflexvit'])
def test_our_tables_agree_with_timm(module):
  """Heads, activation, epsilon and rotary positions of every name that is not refused."""
  for name in timm.list_models(module=module):
    if timm_defaults.refusal(name) is not None:
      continue
    with torch.device('meta'):
      heads = {'num_kv_heads': 1} if 'sapiens2' in name else {}
      peer = timm.create_model(name, depth=1, **heads)
    block = peer.blocks[0]
    mlp = getattr(block, 'mlp', None)
    attention = (
      block
      if module != 'eva' and not hasattr(block, 'attn')
      else block.attn
      if hasattr(block, 'attn')
      else block
    )
    if hasattr(block, 'attns'):
      attention, mlp = block.attns[0].attn, block.ffns[0].mlp
    found = timm_defaults.Defaults.of(name, peer.embed_dim)
    assert found.heads == attention.num_heads, name
    act = type(getattr(mlp, 'act', None) or block.mlp_act).__name__.lower()
    if 'silu' not in act:
      kind = 'quick_gelu' if 'quick' in act else 'gelu_tanh' if 'tanh' in act or _is_tanh(mlp) else 'gelu'
      assert found.activation == kind, name
    norms = [part for part in peer.modules() if 'Norm' in type(part).__name__ and hasattr(part, 'eps')]
    assert {part.eps for part in norms} == {found.norm_epsilon}, name
    assert bool(found.rotary) == (getattr(peer, 'rope', None) is not None), name


def _is_tanh(mlp) -> bool:
  return mlp is not None and getattr(mlp.act, 'approximate', None) == 'tanh'


def test_images_are_prepared_as_by_timm(tmp_path):
  rng = np.random.default_rng(1)
  photograph = Image.fromarray(rng.integers(0, 256, (5, 7, 3), np.uint8)).resize((70, 41))
  save(make_peer('scale'), tmp_path / 'theirs')
  path = tmp_path / 'theirs' / 'config.json'
  for crop_mode in ('center', 'squash'):
    values = json.loads(path.read_text())
    values['pretrained_cfg'] |= {'crop_mode': crop_mode, 'crop_pct': 0.5, 'mean': [0.1, 0.2, 0.3]}
    path.write_text(json.dumps(values))
    pretrained = read(tmp_path / 'theirs')
    write_folder(pretrained, tmp_path / crop_mode, kind='timm')
    for folder in (tmp_path / 'theirs', tmp_path / crop_mode):
      peer = timm.create_model(f'local-dir:{folder}', pretrained=True)
      prepare = data.create_transform(**data.resolve_model_data_config(peer))
      wanted = prepare(photograph).numpy().transpose(1, 2, 0)
      np.testing.assert_allclose(pretrained.preprocess([photograph])[0], wanted, atol=1e-5)


@pytest.mark.parametrize('layer_scale', [0.1, 0.0])
def test_model_that_only_timm_has_is_written_for_timm(tmp_path, layer_scale):
  """LayerScale, whatever it began with, below a head that reads the mean."""
  model = config.ViTConfig(pool='gap', layer_scale=layer_scale, register_tokens=2, norm_epsilon=1e-4)
  pretrained = make_pretrained(model, class_names=('a', 'b', 'c'))
  writer, chosen = formats.written_by('hf', pretrained)
  assert "the kind 'timm' is written" in chosen[0]
  assert "not 'vit', since it has pool 'token' and this model 'gap'" in chosen[0]
  assert "'token_gap' and this model 'gap'" in formats.FORMATS['dinov2']().unfit(pretrained)
  notes = ' '.join(writer.write(pretrained, tmp_path))
  assert 'epsilon of 1e-6' in notes and 'antialiases' in notes
  assert 'timm has no name for a model of these sizes' in notes
  peer = timm.create_model(f'local-dir:{tmp_path}', pretrained=True).eval()
  usual = dataclasses.replace(pretrained.architecture.model, norm_epsilon=1e-6)
  assert_same(dataclasses.replace(pretrained, architecture=Architecture(usual, (16, 16), 3, 3)), peer)
  assert read(tmp_path).class_names == ('a', 'b', 'c')


@pytest.mark.parametrize(
  ('options', 'name'),
  [
    ({'variant': 'B/16', 'patch': 8}, 'vit_base_patch8_224'),
    ({'variant': 'B/16', 'patch': 14}, 'vit_base_patch16_224'),
    (
      {'variant': 'S/16', 'patch': 14, 'layer_scale': 0.1, 'register_tokens': 4},
      'vit_small_patch14_reg4_dinov2',
    ),
    ({'variant': 'Ti/16', 'distillation_token': True}, 'deit_tiny_distilled_patch16_224'),
  ],
)
def test_written_architecture_is_named_by_its_sizes(options, name):
  found, notes = timm_export.architecture_name(config.ViTConfig(**options))
  assert found == name
  assert bool(notes) == (options.get('patch') == 14 and 'layer_scale' not in options)


def test_sizes_of_the_written_names_are_timms():
  """Each name that we write is one of timm's, of the sizes that we write it for."""
  for (width, mlp_dim, depth, heads), (word, plain, dinov2) in timm_export._SIZES.items():
    names = {f'vit_{word}_patch{patch}_224': patch for patch in plain}
    names |= {f'vit_{word}_patch{patch}{reg}_dinov2': patch for patch in dinov2 for reg in ('', '_reg4')}
    for name, patch in names.items():
      first = name == next(iter(names))  # of the other names the blocks are not counted
      with torch.device('meta'):
        peer = timm.create_model(name, **{} if first else {'depth': 1})
      block = peer.blocks[0]
      sizes = (peer.embed_dim, block.mlp.fc1.out_features, block.attn.num_heads)
      assert sizes == (width, mlp_dim, heads) and peer.patch_embed.patch_size == (patch, patch), name
      assert len(peer.blocks) == (depth if first else 1)


@pytest.mark.parametrize('size', [32, 40, 384, 448, 512])
def test_another_image_size_is_resized_as_timm_does_with_its_crop_pct(size, tmp_path):
  peer = timm.create_model('vit_base_patch16_224', **SIZES)
  peer.pretrained_cfg['crop_pct'] = 0.9
  save(peer, tmp_path)
  theirs = timm.data.create_transform(size, crop_pct=0.9).transforms[0].size
  ours = vit_jax.load(tmp_path, image_size=size).preprocess
  assert (ours.size, ours.shorter) == ((size, size), theirs)


@pytest.mark.parametrize(
  'option',
  [{'patchify_channels_last': False}, {'pos_embed_antialias': False}, {'pos_embed_ar_preserving': True}],
)
def test_an_argument_that_may_change_the_function_is_refused_by_its_name(option, tmp_path):
  save(timm.create_model('naflexvit_base_patch16_gap', **SIZES, **option), tmp_path)
  config = json.loads((tmp_path / 'config.json').read_text())
  config['model_args'] |= option
  (tmp_path / 'config.json').write_text(json.dumps(config))
  with pytest.raises(UserError, match=f'its model_args set {next(iter(option))}'):
    read(tmp_path)


@pytest.mark.parametrize(
  ('architecture', 'options', 'words'),
  [
    ('vit_base_mci_224', {}, 'of a kind .* convolutional stem'),
    ('vit_dwee_patch16_reg1_gap_256', {}, 'of a kind .* differential'),
    (
      'swin_tiny_patch4_window7_224',
      {'depths': (1,), 'num_heads': (3,)},
      'which vit_jax does not have; of folders it reads',
    ),
  ],
)
def test_whole_folder_of_another_architecture_is_refused_by_its_name(architecture, options, words, tmp_path):
  """And nobody is sent to get it again."""
  save(timm.create_model(architecture, **options or {'depth': 1}), tmp_path)
  with pytest.raises(UserError, match=f"holds timm's {architecture}, {words}") as error:
    read(tmp_path)
  assert 'again' not in str(error.value)


@pytest.mark.parametrize(('file', 'wrap'), [('pytorch_model.bin', False), ('deit.pth', True)])
def test_line_that_a_pickle_is_refused_with_makes_a_checkpoint(file, wrap, tmp_path, monkeypatch):
  """Of a whole folder, config.json beside it, and of a lone file with the state below 'model'."""
  peer = make_peer('token')
  save(peer, tmp_path)
  (tmp_path / 'model.safetensors').unlink()
  torch.save({'model': peer.state_dict()} if wrap else peer.state_dict(), tmp_path / file)
  with pytest.raises(UserError, match=f'{file}.* PyTorch pickle') as error:
    read(tmp_path / file if wrap else tmp_path)
  program, arguments = re.search(r'python -c "(.*)" (.*) makes ', str(error.value)).groups()
  monkeypatch.setattr(sys, 'argv', ['-c', *shlex.split(arguments)])
  exec(program, {})
  assert_same(read(tmp_path), peer)


@pytest.mark.parametrize(
  'name',
  [
    *('vit_small_patch16_dinov3', 'vit_pe_spatial_tiny_patch16_512', 'vit_pe_core_tiny_patch16_384'),
    *('eva02_tiny_patch14_224', 'vit_base_patch16_clip_224', 'naflexvit_base_patch16_radio_v3'),
  ],
)
def test_pool_that_no_file_names_is_that_of_the_architecture(name):
  with torch.device('meta'):
    model = timm.create_model(name, depth=1)
  shapes = {key: tuple(tensor.shape) for key, tensor in model.state_dict().items()}
  shapes = timm_derived.view(shapes, timm_derived.renamed(shapes, channels=3))
  assert timm_defaults.Defaults.pool(name, shapes) == model.global_pool
