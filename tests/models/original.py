"""What the original code saved and computed, under our names; not by way of `vit_jax.pretrained`."""

import jax.numpy as jnp
import numpy as np


def outputs(golden, name):
  """Images, logits and intermediates of a fixture."""
  with np.load(golden / f'{name}.io.npz', allow_pickle=False) as file:
    return dict(file)


def vit(path):
  """The parameters in a file of the naming of 2020, of a ViT or a hybrid."""
  flat = _load(path)
  block, attention = 'Transformer/encoderblock_', 'MultiHeadDotProductAttention_1/'
  params = {
    'patch_embedding': _group(flat, 'embedding'),
    'position_embedding': flat['Transformer/posembed_input/pos_embedding'],
    'blocks': {
      'attention_norm': _stacked(flat, block, 'LayerNorm_0'),
      'attention': {
        part: _stacked(flat, block, attention + part) for part in ('query', 'key', 'value', 'out')
      },
      'mlp_norm': _stacked(flat, block, 'LayerNorm_2'),
      'mlp': _mlp(flat, block, 'MlpBlock_3'),
    },
    'norm': _group(flat, 'Transformer/encoder_norm'),
    'head': _group(flat, 'head'),
  }
  if 'cls' in flat:
    params['class_token'] = flat['cls']
  if 'pre_logits/kernel' in flat:
    params['pre_logits'] = _group(flat, 'pre_logits')
  if 'conv_root/kernel' in flat:
    params['stem'] = _stem(flat)
  return params


def mixer(path):
  """The parameters in a file of an MLP-Mixer."""
  flat, block = _load(path), 'MixerBlock_'
  return {
    'patch_embedding': _group(flat, 'stem'),
    'blocks': {
      'token_norm': _stacked(flat, block, 'LayerNorm_0'),
      'token_mlp': _mlp(flat, block, 'token_mixing'),
      'channel_norm': _stacked(flat, block, 'LayerNorm_1'),
      'channel_mlp': _mlp(flat, block, 'channel_mixing'),
    },
    'norm': _group(flat, 'pre_head_layer_norm'),
    'head': _group(flat, 'head'),
  }


def _load(path):
  with np.load(path, allow_pickle=False) as file:
    return {name: jnp.asarray(value) for name, value in file.items()}


def _group(flat, name):
  return {key.split('/')[-1]: value for key, value in flat.items() if key.rpartition('/')[0] == name}


def _stacked(flat, block, name):
  depth = len({key.split(block)[1].split('/')[0] for key in flat if key.startswith(block)})
  groups = [_group(flat, f'{block}{layer}/{name}') for layer in range(depth)]
  return {leaf: jnp.stack([group[leaf] for group in groups]) for leaf in groups[0]}


def _mlp(flat, block, name):
  return {
    'dense_in': _stacked(flat, block, f'{name}/Dense_0'),
    'dense_out': _stacked(flat, block, f'{name}/Dense_1'),
  }


def _stem(flat):
  stem = {'root': _group(flat, 'conv_root'), 'root_norm': _flat_norm(flat, 'gn_root')}
  for unit in sorted({key.rsplit('/', 2)[0] for key in flat if key.startswith('block')}):
    block, name = unit.split('/')
    parts = {f'conv{i}': _group(flat, f'{unit}/conv{i}') for i in (1, 2, 3)}
    parts |= {f'norm{i}': _flat_norm(flat, f'{unit}/gn{i}') for i in (1, 2, 3)}
    if f'{unit}/conv_proj/kernel' in flat:
      parts |= {
        'projection': _group(flat, f'{unit}/conv_proj'),
        'projection_norm': _flat_norm(flat, f'{unit}/gn_proj'),
      }
    stem.setdefault(block, {})[name] = parts
  return stem


def _flat_norm(flat, name):
  """The naming of 2020 has them as (1, 1, 1, C)."""
  return {leaf: value.ravel() for leaf, value in _group(flat, name).items()}
