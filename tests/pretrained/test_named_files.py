"""Lone files under the names of their projects, and folders of OpenCLIP and of transformers' TimmWrapper."""

import json
import re

import jax
import numpy as np
import pytest
from PIL import Image
from released_files import read
from test_heads_of_texts import CLASSES, save_tokenizer
from test_towers import relative
from transformers_peers import (
  VISION,
  assert_differences_are_said,
  make_images,
  make_ours,
  randomise,
  safetensors_numpy,
  tensors_in,
  to_torch,
  torch,
  transformers,
)

import vit_jax
from vit_jax.foundation.errors import UserError
from vit_jax.pretrained import formats, open_clip

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures('precise')]  # it compares with another framework


# transformers' names -> the original's: of a block, and around them.
BLOCK = (
  (r'(encoder\.)?layer\.(\d+)\.', r'blocks.\2.'),
  ('layernorm_before', 'norm1'),
  ('layernorm_after', 'norm2'),
  (r'attention\.(output\.dense|o_proj)', 'attn.proj'),
  ('intermediate.dense', 'mlp.fc1'),
  (r'(?<!attn\.)output\.dense', 'mlp.fc2'),
  (r'layer_scale(\d)\.lambda1', r'ls\1.gamma'),
  (r'mlp\.weights_in', 'mlp.w12'),
  (r'mlp\.weights_out', 'mlp.w3'),
  (r'embeddings\.patch_embeddings(\.projection)?', 'patch_embed.proj'),
  (r'embeddings\.position_embeddings', 'pos_embed'),
  (r'embeddings\.', ''),
  ('^layernorm', 'norm'),
)
OF_DINOV3 = (
  ('register_tokens', 'storage_tokens'),
  (r'mlp\.up_proj', 'mlp.w2'),
  (r'mlp\.gate_proj', 'mlp.w1'),
  (r'mlp\.down_proj', 'mlp.w3'),
)
OF_PLAIN_DINOV3 = (
  ('register_tokens', 'storage_tokens'),
  (r'mlp\.up_proj', 'mlp.fc1'),
  (r'mlp\.down_proj', 'mlp.fc2'),
)


def original(folder, renames) -> dict[str, np.ndarray]:
  """A folder's tensors as its project published them: renamed, queries, keys and values one after the other."""
  parts, found = {}, {}
  for name, tensor in tensors_in(folder).items():
    for pattern, other in (*BLOCK, *renames):
      name = re.sub(pattern, other, name)
    match = re.fullmatch(
      r'(.*?)\.attention\.(?:attention\.)?(query|key|value|q_proj|k_proj|v_proj)\.(weight|bias)', name
    )
    if match:
      parts.setdefault(f'{match[1]}.attn.qkv.{match[3]}', {})['qkv'.index(match[2][0])] = tensor
    else:
      found[name] = tensor
  for name, of in parts.items():
    of.setdefault(1, np.zeros_like(of[0]))  # DINOv3 has no bias of keys
    found[name] = np.concatenate([of[number] for number in range(3)])
  return found


OPTIONS = {**VISION, 'hidden_size': 128, 'num_attention_heads': 2}  # heads of 64 channels
ORIGINALS = {
  'dinov2': ('Dinov2Model', {**OPTIONS, 'mlp_ratio': 2}, (), {}),
  'dinov2 giant': ('Dinov2Model', {**OPTIONS, 'mlp_ratio': 4, 'use_swiglu_ffn': True}, (), {}),
  'dinov2 registers': (
    'Dinov2WithRegistersModel',
    {**OPTIONS, 'mlp_ratio': 2, 'num_register_tokens': 3},
    (),
    {},
  ),
  'dinov3': (
    'DINOv3ViTModel',
    {**OPTIONS, 'image_size': 224, 'patch_size': 112, 'num_register_tokens': 4},
    OF_PLAIN_DINOV3,
    {
      'rope_embed.periods': (8,),
      'blocks.0.attn.qkv.bias_mask': (384,),
      'blocks.1.attn.qkv.bias_mask': (384,),
    },
  ),
  'dinov3 gated': (
    'DINOv3ViTModel',
    {
      **OPTIONS,
      'image_size': 224,
      'patch_size': 112,
      'num_register_tokens': 4,
      'use_gated_mlp': True,
      'hidden_act': 'silu',
    },
    OF_DINOV3,
    {},
  ),
  'mae': (
    'ViTMAEModel',
    {**OPTIONS, 'mask_ratio': 0.0},
    (),
    {'mask_token': (1, 1, 16), 'decoder_pos_embed': (1, 5, 16), 'decoder_blocks.0.norm1.weight': (16,)},
  ),
}


@pytest.mark.parametrize('name', ORIGINALS)
def test_lone_file_under_the_names_of_its_project(name, tmp_path):
  cls, options, renames, beside = ORIGINALS[name]
  cls = getattr(transformers, cls)
  torch.manual_seed(0)
  peer = randomise(cls(cls.config_class(**options)), 0)
  peer.save_pretrained(tmp_path / 'folder')
  tensors = original(tmp_path / 'folder', renames) | {
    key: np.ones(shape, np.float32) for key, shape in beside.items()
  }
  safetensors_numpy.save_file(tensors, tmp_path / 'x.safetensors')
  pretrained = read(tmp_path / 'x.safetensors')
  images = make_images(pretrained)
  with torch.no_grad():
    noise = {'noise': torch.arange(4).repeat(2, 1).float()} if name == 'mae' else {}
    expected = peer(to_torch(images), **noise).last_hidden_state.numpy()
  ours = make_ours(pretrained)
  expected = expected[:, 0]
  found = ours.head_input(ours.features(images))
  if 'dinov3' in name:  # whose file does not tell the epsilon of transformers' test model
    assert pretrained.architecture.model.norm_epsilon == 1e-5
  assert relative(found, expected) < 1e-5
  assert any('has no config.json' in note and 'heads 2' in note for note in pretrained.notes)
  writer = formats.FORMATS['original']()
  assert 'can be read, but not written' in str(writer.unfit(pretrained))


def test_lone_file_of_torchvision(tmp_path):
  torchvision = pytest.importorskip('torchvision')
  sizes = {'num_layers': 2, 'num_heads': 2, 'hidden_dim': 128, 'mlp_dim': 48, 'num_classes': 5}
  peer = randomise(torchvision.models.VisionTransformer(image_size=32, patch_size=16, **sizes), 0)
  tensors = {name: tensor.numpy() for name, tensor in peer.state_dict().items()}
  safetensors_numpy.save_file(tensors, tmp_path / 'x.safetensors')
  pretrained = read(tmp_path / 'x.safetensors')
  images = make_images(pretrained)
  with torch.no_grad():
    expected = peer(to_torch(images)).numpy()
  assert relative(make_ours(pretrained)(images), expected) < 1e-5
  assert pretrained.preprocess.shorter == 37


# Image towers of timm's: their names there, how they pool, and the layer behind.
TRUNKS = {
  'siglip': ('vit_base_patch32_siglip_256', 'map', 'none'),
  'eva02': ('eva02_base_patch16_clip_224', 'token', None),
  'linear': ('vit_medium_patch16_gap_256', '', 'linear'),
}
SMALL = {'embed_dim': 64, 'num_heads': 2, 'img_size': 32, 'depth': 2}


def open_clip_of(kind: str, folder):
  """A small model of OpenCLIP in a folder as the Hub has it, its tokenizer, and its logits of images and texts."""
  model = pytest.importorskip('open_clip.model')
  text = {'context_length': 8, 'vocab_size': 20, 'width': 32, 'heads': 4, 'layers': 2}
  vision = {'image_size': 16, 'patch_size': 8, 'width': 32, 'head_width': 8, 'layers': 2}
  options = {'embed_dim': 24, 'vision_cfg': vision, 'text_cfg': text, 'quick_gelu': kind == 'quick'}
  if kind == 'clipa':
    vision |= {
      'no_ln_pre': True,
      'pool_type': 'avg',
      'final_ln_after_pool': True,
      'norm_kwargs': {'eps': 1e-3},
    }
    text |= {'pool_type': 'eos', 'eos_id': 10, 'act_kwargs': {'approximate': 'tanh'}}
  if kind == 'unmasked':
    text['no_causal_mask'] = True
  if kind == 'biased':
    options['init_logit_bias'] = -3
  if kind in TRUNKS:
    timm = pytest.importorskip('timm')
    vision = dict(zip(('timm_model_name', 'timm_pool', 'timm_proj'), TRUNKS[kind]), image_size=32)
    if kind == 'siglip':
      text |= {'no_causal_mask': True, 'proj_bias': True, 'pool_type': 'last', 'norm_kwargs': {'eps': 1e-6}}
      options |= {'embed_dim': 64, 'init_logit_bias': -10}
    create = timm.create_model
    with pytest.MonkeyPatch.context() as patch:  # the same model with few blocks
      patch.setattr(timm, 'create_model', lambda *names, **others: create(*names, **others, **SMALL))
      peer = model.CustomTextCLIP(**options | {'vision_cfg': vision})
    options |= {'vision_cfg': vision}
  else:
    peer = model.CLIP(**options)
  randomise(peer, 0)
  tensors = {name: np.ascontiguousarray(tensor.numpy()) for name, tensor in peer.state_dict().items()}
  tensors.pop('attn_mask', None)
  folder.mkdir()
  safetensors_numpy.save_file(tensors, folder / 'open_clip_model.safetensors')
  preprocess = {
    'mean': [0.5, 0.4, 0.3],
    'std': [0.2, 0.3, 0.4],
    'interpolation': 'bicubic',
    'resize_mode': 'shortest',
  }
  (folder / 'open_clip_config.json').write_text(
    json.dumps({'model_cfg': options, 'preprocess_cfg': preprocess})
  )
  tokenizer = save_tokenizer(folder, start='' if kind == 'siglip' else '<s> ')
  values = json.loads(
    (folder / 'tokenizer_config.json').read_text()
  )  # OpenCLIP's own fills up with 0 nevertheless
  (folder / 'tokenizer_config.json').write_text(json.dumps(values | {'pad_token': tokenizer.eos_token}))

  def logits(images: np.ndarray, texts) -> np.ndarray:
    ids = tokenizer(list(texts), padding='max_length', truncation=True, max_length=8, return_tensors='pt')
    with torch.no_grad():
      image, text = (
        peer.encode_image(to_torch(images)),
        peer.encode_text(ids['input_ids'] * ids['attention_mask']),
      )
      image, text = (x / x.norm(dim=-1, keepdim=True) for x in (image, text))
      scores = peer.logit_scale.exp() * image @ text.T
    return (scores if peer.logit_bias is None else scores + peer.logit_bias).detach().numpy()

  return logits


@pytest.mark.parametrize('kind', ['clip', 'quick', 'clipa', 'unmasked', 'biased', *TRUNKS])
def test_folder_of_open_clip_gives_its_logits_and_a_lone_file_says_what_is_guessed(kind, tmp_path):
  logits = open_clip_of(kind, tmp_path / 'x')
  pretrained = read(tmp_path / 'x')
  assert 'text tower is left out' in pretrained.notes[0]
  assert pretrained.preprocess.mean == (0.5, 0.4, 0.3)
  images = make_images(pretrained)
  model = vit_jax.load(tmp_path / 'x', classes=CLASSES)
  np.testing.assert_allclose(model(images), logits(images, CLASSES), atol=1e-5, rtol=0)
  (tmp_path / 'x/open_clip_config.json').unlink()
  lone = read(tmp_path / 'x/open_clip_model.safetensors', heads=2 if kind in TRUNKS else 4)
  assert any("activation 'gelu'" in note or "activation 'silu'" in note for note in lone.notes)
  jax.tree.map(np.testing.assert_array_equal, lone.params, pretrained.params)
  assert_differences_are_said(pretrained, lone)


def test_folder_of_a_timm_wrapper_is_the_folder_of_timm(tmp_path):
  timm = pytest.importorskip('timm')
  arguments = {'depth': 2, 'embed_dim': 64, 'num_heads': 1, 'img_size': 32}
  config = transformers.TimmWrapperConfig(
    architecture='vit_tiny_patch16_224',
    model_args=arguments,
    num_labels=3,
    pretrained_cfg={'input_size': [3, 32, 32]},
  )
  peer = randomise(transformers.TimmWrapperForImageClassification(config), 0)
  assert isinstance(peer.timm_model, timm.models.VisionTransformer)
  peer.save_pretrained(tmp_path)
  pretrained = read(tmp_path)
  assert any("how the model pools (global_pool): 'token' is taken" in note for note in pretrained.notes)
  images = make_images(pretrained)
  with torch.no_grad():
    expected = peer(to_torch(images)).logits.numpy()
  assert relative(make_ours(pretrained)(images), expected) < 1e-5


def save_timm_wrapper(folder, classes: int, problem: str | None) -> None:
  pytest.importorskip('timm')
  config = transformers.TimmWrapperConfig(
    architecture='vit_tiny_patch16_224',
    model_args={'depth': 2, 'embed_dim': 64, 'num_heads': 1, 'img_size': 32},
    num_labels=classes,
    problem_type=problem,
    pretrained_cfg={'input_size': [3, 32, 32], 'mean': [0.5] * 3, 'std': [0.5] * 3},
  )
  randomise(transformers.TimmWrapperForImageClassification(config), 0).save_pretrained(folder)


@pytest.mark.parametrize(('classes', 'problem'), [(3, 'multi_label_classification'), (3, None), (1, None)])
def test_probabilities_of_a_timm_wrapper_are_those_of_its_pipeline(classes, problem, tmp_path):
  save_timm_wrapper(tmp_path, classes, problem)
  photo = Image.fromarray(np.random.default_rng(0).integers(0, 256, (40, 50, 3), dtype=np.uint8))
  rows = transformers.pipeline('image-classification', str(tmp_path))(photo, top_k=classes)
  theirs = {row['label']: row['score'] for row in rows}
  model = vit_jax.load(tmp_path)
  assert model.class_names is None  # nobody named them
  ours = model.probabilities(model(model.preprocess([photo])))[0]
  np.testing.assert_allclose(ours, [theirs[f'LABEL_{i}'] for i in range(classes)], atol=1e-3)


def test_a_timm_wrapper_with_a_head_of_regression_is_refused(tmp_path):
  save_timm_wrapper(tmp_path, 1, 'regression')
  with pytest.raises(UserError, match='one of regression'):
    read(tmp_path)


def test_texts_are_cleaned_as_by_open_clip():
  tokenizer = pytest.importorskip('open_clip.tokenizer')
  for text in ('A  photo, of a Dog!', 'red_panda (small)', "it's - a cat.\n"):
    assert open_clip.canonical(text) == tokenizer.canonicalize_text(text)
