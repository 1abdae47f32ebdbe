"""timm's Vision Transformers, against timm itself."""

import dataclasses
import json
import pathlib

import jax
import numpy as np
import pytest
from flax import nnx
from PIL import Image

from vit_jax import config, pytrees
from vit_jax.errors import UserError
from vit_jax.pretrained import huggingface, position_resize
from vit_jax.pretrained import timm as timm_folder
from vit_jax.pretrained.base import Portable, Preprocess

REASON = 'needs torch, safetensors and timm, which needs torchvision'
torch = pytest.importorskip('torch', reason=REASON)
safetensors_numpy = pytest.importorskip('safetensors.numpy', reason=REASON)
timm = pytest.importorskip('timm', reason=REASON, exc_type=ImportError)
hub = pytest.importorskip('timm.models._hub', reason=REASON)
data = pytest.importorskip('timm.data', reason=REASON)

SIZES = {'embed_dim': 32, 'depth': 3, 'num_heads': 4, 'patch_size': 8, 'img_size': 16, 'num_classes': 5}
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
  'mean beside registers': {'global_pool': 'avg', 'class_token': False, 'reg_tokens': 2, 'fc_norm': False},
}


@pytest.fixture(scope='module', autouse=True)
def _precision():
  torch.set_num_threads(1)
  with jax.default_matmul_precision('highest'):
    yield


def make_peer(name: str, seed: int = 0):
  peer = timm.create_model('vit_base_patch16_224', **{**SIZES, **PEERS[name]})
  generator = torch.Generator().manual_seed(seed)
  with torch.no_grad():
    for key, parameter in peer.named_parameters():
      noise = torch.randn(parameter.shape, generator=generator)
      parameter.copy_((0.15 if parameter.ndim == 2 else 0.3) * noise + ('norm' in key and 'weight' in key))
  return peer.eval()


def make_ours(portable: Portable) -> nnx.Module:
  graphdef, _ = pytrees.shapes(portable.model, portable.image_size, portable.channels, portable.num_classes)
  return nnx.merge(graphdef, jax.tree.map(jax.numpy.asarray, portable.params))


@jax.jit
def run(ours: nnx.Module, images: np.ndarray):
  """The tokens after each block, those after the last norm, what is pooled, and the logits."""
  states = [ours.features(images, layer=i) for i in range(ours.depth)]
  final = ours.features(images)
  return states, final, ours.pool(final), ours(images)


def make_images(portable: Portable) -> np.ndarray:
  shape = (2, *portable.image_size, portable.channels)
  return np.random.default_rng(0).normal(size=shape).astype(np.float32)


def assert_same(portable: Portable, peer) -> None:
  images = make_images(portable)
  ours_states, ours_final, ours_pooled, ours_logits = run(make_ours(portable), images)
  theirs = torch.from_numpy(images.transpose(0, 3, 1, 2).copy())
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
  if portable.num_classes:
    np.testing.assert_allclose(ours_logits, logits, atol=1e-4, rtol=0)
  else:
    np.testing.assert_allclose(ours_pooled, logits, atol=1e-4, rtol=0)


def save(peer, folder: pathlib.Path) -> None:
  hub.save_for_hf(peer, folder, safe_serialization=True)


@pytest.mark.parametrize('name', PEERS)
def test_read_gives_the_same(name, tmp_path):
  peer = make_peer(name)
  save(peer, tmp_path)
  assert_same(huggingface.read(tmp_path), peer)


@pytest.mark.parametrize('name', PEERS)
def test_written_folder_is_loaded_by_timm(name, tmp_path):
  peer = make_peer(name)
  save(peer, tmp_path / 'theirs')
  portable = huggingface.read(tmp_path / 'theirs')
  huggingface.write(portable, tmp_path / 'ours', kind='timm')
  again = timm.create_model(f'local-dir:{tmp_path / "ours"}', pretrained=True).eval()
  assert_same(portable, again)
  if name != 'placed registers':  # where the class token takes up its position
    params = huggingface.read(tmp_path / 'ours').params
    jax.tree.map(np.testing.assert_array_equal, params, portable.params)


@pytest.mark.parametrize('name', ['token', 'scale', 'map', 'registers', 'mean'])
def test_round_trip_gives_the_same_bits(name, tmp_path):
  save(make_peer(name), tmp_path / 'theirs')
  huggingface.write(huggingface.read(tmp_path / 'theirs'), tmp_path / 'ours', kind='timm')
  theirs, ours = (safetensors_numpy.load_file(tmp_path / n / 'model.safetensors') for n in ('theirs', 'ours'))
  assert theirs.keys() == ours.keys()
  for key in theirs:
    np.testing.assert_array_equal(ours[key], theirs[key], err_msg=key, strict=True)


def test_bare_file_of_a_published_width(tmp_path):
  """Nothing but tensors: heads, image and pooling as timm's models of that width have them."""
  options = {'embed_dim': 192, 'num_heads': 3, 'depth': 1, 'patch_size': 8, 'img_size': 24, 'num_classes': 2}
  PEERS['tiny'] = options
  peer = make_peer('tiny')
  del PEERS['tiny']
  path = tmp_path / 'vit_tiny.safetensors'
  safetensors_numpy.save_file({key: value.numpy() for key, value in peer.state_dict().items()}, path)
  portable = huggingface.read(path)
  assert_same(portable, peer)
  assert any('3, as its models of that width' in note for note in portable.notes)
  assert any('24 x 24, a square' in note for note in portable.notes)
  assert huggingface.read(path, heads=6, gelu='tanh').model.heads == 6


def test_names_that_say_what_tensors_do_not(tmp_path):
  save(make_peer('token'), tmp_path)
  path = tmp_path / 'config.json'
  values = json.loads(path.read_text())
  del values['model_args']
  for name, heads, gelu in (
    ('vit_base_patch16_gap_224', 16, 'erf'),
    ('vit_large_patch16_siglip_512', 1, 'tanh'),
    ('vit_large_patch16_siglip_256', 1, 'erf'),
  ):
    path.write_text(json.dumps(values | {'architecture': name}))
    portable = huggingface.read(tmp_path)
    assert (portable.model.heads, portable.model.gelu) == (heads, gelu)
  for name in ('vit_base_patch16_rpn_224', 'vit_base_patch32_clip_quickgelu_224', 'swin_tiny', 'beit_base'):
    path.write_text(json.dumps(values | {'architecture': name}))
    with pytest.raises(UserError, match=f'holds {name}, which vit_jax does not have'):
      huggingface.read(tmp_path)


@pytest.mark.slow
def test_our_tables_agree_with_timm():
  """Heads and GELU of every published model whose tensors look like ours."""
  seen = 0
  for name in timm.list_models('vit_*', module='vision_transformer'):
    if timm_folder._OTHER.fullmatch(name):
      continue
    with torch.device('meta'):
      peer = timm.create_model(name)
    block = peer.blocks[0]
    if type(block).__name__ != 'Block' or type(block.mlp).__name__ != 'Mlp':
      continue
    if not isinstance(peer.norm, timm.layers.LayerNorm):
      continue
    width = peer.embed_dim
    heads = timm_folder._HEADS_OF.get(name) or timm_folder._HEADS.get(width) or width // 64
    tanh = getattr(block.mlp.act, 'approximate', None) == 'tanh' or 'Tanh' in type(block.mlp.act).__name__
    assert (heads, bool(timm_folder._TANH.fullmatch(name))) == (block.attn.num_heads, tanh), name
    seen += 1
  assert seen > 40


def test_images_are_prepared_as_by_timm(tmp_path):
  rng = np.random.default_rng(1)
  photograph = Image.fromarray(rng.integers(0, 256, (5, 7, 3), np.uint8)).resize((70, 41))
  save(make_peer('scale'), tmp_path / 'theirs')
  path = tmp_path / 'theirs' / 'config.json'
  for crop_mode in ('center', 'squash'):
    values = json.loads(path.read_text())
    values['pretrained_cfg'] |= {'crop_mode': crop_mode, 'crop_pct': 0.5, 'mean': [0.1, 0.2, 0.3]}
    path.write_text(json.dumps(values))
    portable = huggingface.read(tmp_path / 'theirs')
    huggingface.write(portable, tmp_path / crop_mode, kind='timm')
    for folder in (tmp_path / 'theirs', tmp_path / crop_mode):
      peer = timm.create_model(f'local-dir:{folder}', pretrained=True)
      prepare = data.create_transform(**data.resolve_model_data_config(peer))
      wanted = prepare(photograph).numpy().transpose(1, 2, 0)
      np.testing.assert_allclose(portable.preprocess([photograph])[0], wanted, atol=1e-5)


def test_position_resize_is_that_of_timm():
  from timm.layers import resample_abs_pos_embed

  embedding = np.random.default_rng(0).normal(size=(1, 17, 8)).astype(np.float32)
  for size in ((6, 6), (3, 5), (2, 9)):
    wanted = resample_abs_pos_embed(torch.from_numpy(embedding), list(size), [4, 4])
    ours = position_resize.resize(
      embedding, (4, 4), size, old_class_token=True, new_class_token=True, method='bicubic_antialias'
    )
    np.testing.assert_allclose(ours, wanted, atol=1e-5)


def test_a_fine_tuned_model_of_ours(tmp_path):
  """DINOv2's backbone under a head that reads the class token, which transformers has not."""
  sizes = {'patch': 8, 'width': 32, 'mlp_dim': 44, 'depth': 2, 'heads': 4}
  model = config.ViTConfig(variant='custom', **sizes, layer_scale=0.1, register_tokens=2, norm_epsilon=1e-5)
  _, shapes = pytrees.shapes(model, (16, 16), 3, 3)
  rng = np.random.default_rng(3)
  flat = {path: (0.2 * rng.normal(size=leaf.shape)).astype(np.float32) for path, leaf in shapes.items()}
  preprocess = Preprocess.from_range((16, 16), -1, 1)
  portable = Portable(model, (16, 16), 3, 3, pytrees.unflatten(flat), preprocess, class_names=('a', 'b', 'c'))
  notes = ' '.join(huggingface.write(portable, tmp_path))
  assert 'epsilon of 1e-6' in notes and 'antialiases' in notes
  peer = timm.create_model(f'local-dir:{tmp_path}', pretrained=True).eval()
  assert_same(dataclasses.replace(portable, model=dataclasses.replace(model, norm_epsilon=1e-6)), peer)
  assert huggingface.read(tmp_path).class_names == ('a', 'b', 'c')


@pytest.mark.parametrize(
  ('options', 'words'),
  [
    ({'global_pool': 'avg'}, 'last norm behind the pooling'),
    ({'global_pool': 'avg', 'fc_norm': False}, 'with none of the tokens before the patches'),
    ({'pre_norm': True}, 'patch_embed.proj.bias'),
    ({'global_pool': 'max', 'fc_norm': False}, "global_pool 'max'"),
    ({'act_layer': 'relu'}, "act_layer 'relu'"),
    ({'final_norm': False}, 'norm.weight'),
  ],
)
def test_models_that_we_have_not_are_refused(options, words, tmp_path):
  save(timm.create_model('vit_base_patch16_224', **SIZES, **options), tmp_path)
  with pytest.raises(UserError, match=words):
    huggingface.read(tmp_path)
