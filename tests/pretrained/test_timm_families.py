"""timm's models beside its plain Vision Transformers: their logits, and the files that we write for timm."""

import dataclasses
import json
import pathlib

import jax
import numpy as np
import pytest
from released_files import read
from timm_peers import SIZES, hub, save, timm
from transformers_peers import (
  assert_differences_are_said,
  make_images,
  make_ours,
  randomise,
  to_torch,
  torch,
  transformers,
)

import vit_jax
from vit_jax.foundation.errors import UserError
from vit_jax.pretrained.base import FORMATS

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures('precise')]  # it compares with another framework

FAMILIES = {
  'clip': ('vit_base_patch16_clip_quickgelu_224', {}),
  'mae': ('vit_base_patch16_224', {'global_pool': 'avg'}),
  'pools': ('vit_base_patch16_224', {'global_pool': 'avgmax', 'fc_norm': False, 'final_norm': False}),
  'map of patches': ('vit_base_patch16_224', {'global_pool': 'map', 'reg_tokens': 2}),
  'largest': ('vit_base_patch16_224', {'global_pool': 'max', 'pos_embed': 'none', 'fc_norm': False}),
  'swiglu': ('vit_giant_patch14_reg4_dinov2', {'mlp_ratio': 4}),
  'beit3': ('beit3_base_patch16_224', {}),
  'aimv2': ('aimv2_large_patch14_224', {}),
  'rms norm': ('test_vit4', {}),
  'behind': ('vit_base_patch16_rpn_224', {'init_values': None}),
  'parallel': ('vit_base_patch16_xp_224', {}),
  'pairs': ('vit_base_patch16_18x2_224', {}),
  'siglip cut': ('vit_so400m_patch14_siglip_384', {'img_size': 20}),
  'dinov3': ('vit_small_patch16_dinov3', {}),
  'dinov3 gated': ('vit_small_plus_patch16_dinov3_qkvb', {}),
  'eva02': ('eva02_base_patch14_224', {}),
  'eva02 packed': ('eva02_tiny_patch14_224', {}),
  'eva02 clip': ('eva02_base_patch16_clip_224', {}),
  'eva': ('eva_giant_patch14_224', {'mlp_ratio': 2}),
  'axial': ('vit_small_patch16_rope_ape_224', {}),
  'mixed': ('vit_small_patch16_rope_mixed_224', {}),
  'perception encoder': ('vit_pe_core_tiny_patch16_384', {}),
  'sapiens': ('vit_base_patch16_sapiens2', {'num_kv_heads': [4, 2, 4]}),
  'beit': ('beit_base_patch16_224', {}),
  'relative': ('vit_relpos_base_patch16_cls_224', {'rel_pos_type': 'bias'}),
  'of offsets': ('vit_srelpos_small_patch16_224', {'rel_pos_dim': 6}),
  'naflex': ('naflexvit_base_patch16_gap', {'pos_embed_grid_size': (3, 3)}),
  'rows and columns': ('naflexvit_base_patch16_parfac_gap', {'pos_embed_grid_size': (3, 3)}),
  'hybrid': ('vit_tiny_r_s16_p8_224', {'patch_size': 2}),
}
NOT_WRITTEN = {'sapiens': 'GELU by erf or SwiGLU only'}


def make_of_family(name: str):
  architecture, options = FAMILIES[name]
  sizes = {**SIZES, 'img_size': 64 if name == 'hybrid' else 16, **options}
  if name in ('naflex', 'rows and columns'):
    del sizes['img_size']
  peer = randomise(timm.create_model(architecture, **sizes), seed=0)
  size = sizes.get('img_size', 16)
  peer.pretrained_cfg |= {'input_size': (3, size, size), 'mean': (0.1, 0.2, 0.3)}
  peer.pretrained_cfg |= {'crop_pct': 0.95, 'interpolation': 'bilinear'}
  return peer


def save_with_heads(peer, folder: pathlib.Path, name: str) -> None:
  """As a published folder: no model_args but sizes."""
  save(peer, folder)
  path = folder / 'config.json'
  values = json.loads(path.read_text())
  values['model_args'] = {'num_heads': 4} | {'img_size': 20} if name == 'siglip cut' else {'num_heads': 4}
  path.write_text(json.dumps(values))


def told(folder: pathlib.Path, **arguments) -> None:
  """Adds model_args to a folder."""
  path = folder / 'config.json'
  values = json.loads(path.read_text())
  values['model_args'] = values.get('model_args', {}) | arguments
  path.write_text(json.dumps(values))


def logits_of(peer, images: np.ndarray) -> np.ndarray:
  with torch.no_grad():
    return peer(to_torch(images)).numpy()


@pytest.mark.parametrize('name', FAMILIES)
def test_a_model_of_another_family_has_timms_logits_and_is_written_for_timm(name, tmp_path):
  """And its file alone is the same model, or says what differs."""
  peer = make_of_family(name)
  save_with_heads(peer, tmp_path / 'theirs', name)
  pretrained = read(tmp_path / 'theirs')
  images = make_images(pretrained)
  ours, theirs = make_ours(pretrained)(images), logits_of(peer, images)
  np.testing.assert_allclose(ours, theirs, atol=1e-4, rtol=1e-4)
  (tmp_path / 'theirs/config.json').unlink()
  lone = read(tmp_path / 'theirs/model.safetensors', heads=4)
  assert_differences_are_said(pretrained, lone)
  same = [(x.architecture.model.position, x.architecture.image_size) for x in (pretrained, lone)]
  if same[0] == same[1]:  # otherwise channels are in another order, or offsets others
    jax.tree.map(np.testing.assert_array_equal, lone.params, pretrained.params)
  writer = FORMATS['timm']()
  if name in NOT_WRITTEN:
    assert NOT_WRITTEN[name] in writer.unfit(pretrained)
    return
  writer.write(pretrained, tmp_path / 'ours')
  again = timm.create_model(f'local-dir:{tmp_path / "ours"}', pretrained=True).eval()
  np.testing.assert_allclose(logits_of(again, images), theirs, atol=1e-6, rtol=1e-6)
  once_more = read(tmp_path / 'ours')
  np.testing.assert_allclose(make_ours(once_more)(images), ours, atol=1e-6, rtol=1e-6)


def test_rotary_positions_from_patch_to_patch_are_written_without_a_stretch_and_not_read_with_one(tmp_path):
  name = 'vit_small_patch16_rope_224'
  peer = randomise(timm.create_model(name, **SIZES), seed=0)
  save(peer, tmp_path / 'theirs')
  told(tmp_path / 'theirs', num_heads=4)
  FORMATS['timm']().write(read(tmp_path / 'theirs'), tmp_path / 'ours')
  again = timm.create_model(f'local-dir:{tmp_path / "ours"}', pretrained=True, img_size=32).eval()
  larger = timm.create_model(name, **(SIZES | {'img_size': 32})).eval()
  larger.load_state_dict(peer.state_dict())
  images = np.random.default_rng(0).standard_normal((2, 32, 32, 3)).astype(np.float32)
  np.testing.assert_allclose(logits_of(again, images), logits_of(larger, images), atol=1e-6)
  told(tmp_path / 'theirs', ref_feat_shape=[4, 4])
  with pytest.raises(UserError, match='stretches rotary positions that go from one patch to the next'):
    read(tmp_path / 'theirs')


def test_null_of_ref_feat_shape_is_no_stretch(tmp_path):
  save(randomise(timm.create_model('eva02_tiny_patch14_224', **SIZES), 0), tmp_path)
  told(tmp_path, ref_feat_shape=None, **SIZES)
  peer = timm.create_model(f'local-dir:{tmp_path}', pretrained=True).eval()
  pretrained = read(tmp_path)
  images = make_images(pretrained)
  np.testing.assert_allclose(make_ours(pretrained)(images), logits_of(peer, images), atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize('name', ['vit_small_patch16_dinov3', 'vit_small_patch14_dinov2'])
def test_size_that_a_model_is_evaluated_at_is_said_where_it_is_not_its_own(name, tmp_path):
  """A model for 32 pixels whose folder says that 16 are shown to it: loaded for those it has timm's logits."""
  peer = randomise(timm.create_model(name, **(SIZES | {'img_size': 32}), dynamic_img_size=True), 0)
  hub.save_for_hf(peer, tmp_path, safe_serialization=True, data_config={'input_size': (3, 16, 16)})
  (note,) = [note for note in read(tmp_path).notes if 'evaluates it' in note]
  assert 'image_size=(16, 16) resizes the model' in note
  ours = vit_jax.load(tmp_path, image_size=(16, 16))
  images = np.random.default_rng(0).standard_normal((2, 16, 16, 3)).astype(np.float32)
  np.testing.assert_allclose(ours(images), logits_of(peer.eval(), images), atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize('name', ['gmixer_12_224', 'gmlp_ti16_224', 'resmlp_12_224', 'mixer_s32_224'])
def test_mixers_for_images_of_another_size_are_written_for_timm(name, tmp_path):
  peer = randomise(timm.create_model(name, img_size=64, num_classes=5), 0)
  save(peer, tmp_path / 'theirs')
  pretrained = read(tmp_path / 'theirs')
  FORMATS['timm_mixer']().write(pretrained, tmp_path / 'ours')
  again = timm.create_model(f'local-dir:{tmp_path / "ours"}', pretrained=True).eval()
  images = make_images(pretrained)
  np.testing.assert_array_equal(logits_of(again, images), logits_of(peer, images))
  assert read(tmp_path / 'ours').architecture == pretrained.architecture
  other = dataclasses.replace(pretrained.architecture.model, mlp_dim=8)
  other = dataclasses.replace(
    pretrained, architecture=dataclasses.replace(pretrained.architecture, model=other)
  )
  assert 'published sizes' in FORMATS['timm_mixer']().unfit(other)


@pytest.mark.parametrize(
  'norm', ['LayerNormFp32', 'rms_norm', 'rmsnormfp32', 'simplenorm', 'simple_norm_fp32']
)
def test_norm_that_a_config_names_is_timms_or_refused(norm, tmp_path):
  peer = randomise(timm.create_model('vit_base_patch16_224', **SIZES, norm_layer=norm), seed=0)
  save(peer, tmp_path)
  told(tmp_path, norm_layer=norm)
  if norm.startswith('simple'):
    with pytest.raises(UserError, match=f"it has norm_layer '{norm}', and vit_jax has layernorm"):
      read(tmp_path)
    return
  pretrained = read(tmp_path)
  images = make_images(pretrained)
  np.testing.assert_allclose(make_ours(pretrained)(images), logits_of(peer, images), atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize(
  ('architecture', 'options'),
  [('vit_base_patch16_224', SIZES), ('mixer_s32_224', {'num_classes': 5})],
)
def test_class_names_are_those_that_timm_reads(architecture, options, tmp_path):
  """Of the root of config.json before `pretrained_cfg`; numbers with gaps are no classes of the head."""
  names = ['zebra', 'ant', 'mouse', 'cat', 'bee']
  hub.save_for_hf(
    timm.create_model(architecture, **options),
    tmp_path,
    model_config={'label_names': names},
    safe_serialization=True,
  )
  config = tmp_path / 'config.json'
  values = json.loads(config.read_text())
  values['pretrained_cfg']['label_names'] = sorted(names)
  by_number = {str(i): name for i, name in enumerate(names)}
  for label_names in (names, dict(reversed(by_number.items())), None):
    values['label_names'] = label_names
    config.write_text(json.dumps({key: value for key, value in values.items() if value is not None}))
    theirs = hub.load_model_config_from_path(str(tmp_path))[0]['label_names']
    theirs = [theirs[str(i)] for i in range(5)] if isinstance(theirs, dict) else theirs
    assert read(tmp_path).class_names == tuple(theirs)
  values['label_names'] = {str(2 * i): name for i, name in enumerate(names)}
  config.write_text(json.dumps(values))
  assert read(tmp_path).class_names is None
  old = {'architecture': architecture, 'num_features': 32, **values['pretrained_cfg'], 'labels': names}
  del old['label_names']
  config.write_text(json.dumps(old))
  if architecture.startswith('mixer'):  # whose sizes the tensors tell
    theirs = hub.load_model_config_from_path(str(tmp_path))[0]['label_names']
    assert read(tmp_path).class_names == tuple(theirs)


@pytest.mark.parametrize('kind', ['timm', 'timm_mixer'])
def test_written_names_and_sigmoids_are_read_by_timm_and_transformers(kind, tmp_path):
  name, options = ('vit_base_patch16_224', SIZES) if kind == 'timm' else ('mixer_s32_224', {'num_classes': 5})
  save(timm.create_model(name, **options), tmp_path / 'theirs')
  names = ('zebra', 'ant', 'mouse', 'cat', 'bee')
  ours = dataclasses.replace(read(tmp_path / 'theirs'), class_names=names, link='sigmoid')
  assert not any('sigmoid' in note for note in FORMATS[kind]().write(ours, tmp_path / 'ours'))
  assert hub.load_model_config_from_path(str(tmp_path / 'ours'))[0]['label_names'] == list(names)
  config = transformers.AutoConfig.from_pretrained(tmp_path / 'ours')
  assert config.id2label == dict(enumerate(names))
  assert config.problem_type == 'multi_label_classification'
  again = read(tmp_path / 'ours')
  assert (again.class_names, again.link) == (names, 'sigmoid')


@pytest.mark.parametrize(
  ('name', 'options', 'words'),
  [
    ('vit_base_patch16_224', {'global_pool': 'prr'}, "global_pool 'prr'"),
    (
      'vit_base_patch16_224',
      {'global_pool': 'avg', 'pool_include_prefix': True, 'reg_tokens': 2},
      'all of the tokens',
    ),
    ('beit_base_patch16_224', {'use_abs_pos_emb': True}, 'positions of several kinds'),
    ('vit_base_patch16_224', {'act_layer': 'elu'}, "act_layer 'elu'"),
    ('eva02_tiny_patch14_224', {'global_pool': 'map'}, 'its attention pool has an MLP without gates'),
    ('vit_relpos_small_patch16_224', {'rel_pos_type': 'mlp-swin'}, "Swin's own"),
    (
      'vit_base_patch16_224',
      {'img_size': 20, 'dynamic_img_size': True, 'dynamic_img_pad': True},
      'dynamic_img_pad',
    ),
  ],
)
def test_model_that_we_do_not_have_is_refused(name, options, words, tmp_path):
  save(timm.create_model(name, **SIZES | options), tmp_path)
  with pytest.raises(UserError, match=words):
    read(tmp_path)
