"""The forward pass of a Vision Transformer in NumPy, float64 and plain loops, to test ours against.

Written from the paper and the description of the released checkpoints; no JAX.
"""

import math

import numpy as np
from scipy import ndimage


def forward(
  params,
  images,
  *,
  pool='token',
  epsilon=1e-6,
  activation='gelu_tanh',
  post_norm=False,
  rotary='',
  rotary_grid=None,
  drop=lambda place, layer, x: x,
):
  """Every stage of the forward pass.

  Args:
    params: nested dict of arrays under our parameter names; of axial attention and MLPs with locality too.
    images: (B, H, W, C).
    pool: 'token', 'gap', 'token_gap', 'map' or 'none'.
    epsilon: of all norms.
    activation: of MLPs.
    post_norm: whether norms are behind attention and MLP.
    rotary, rotary_grid: the kind of rotary positions, '' for none, and the grid that two kinds stretch to; other
      positions are seen from the parameters.
    drop: called with what may be dropped, where, and in which block (None: outside of them).

  Returns:
    'patches', 'embedded', 'blocks' (the tokens after each), 'tokens', 'pooled', 'pre_logits' (before tanh)
    and 'logits': with a distillation token the mean of 'logits_of_labels' and 'logits_of_teachers'.
  """
  params = float64(params)
  out = {}
  x = patches(np.asarray(images, np.float64), params['patch_embedding'])
  x = out['patches'] = norm(x, params.get('patch_norm'), epsilon)
  if 'class_token' in params:
    x = np.concatenate([np.repeat(params['class_token'], len(x), axis=0), x], axis=1)
  side = len(params['patch_embedding']['kernel'])
  grid = images.shape[1] // side, images.shape[2] // side
  x = x + _positions(params, grid, x.shape[1])
  registers, first = 0, int('class_token' in params)
  for name in ('register_tokens', 'distillation_token'):  # each right behind the class token
    if name in params:
      registers += params[name].shape[1]
      x = np.insert(x, [first] * params[name].shape[1], params[name], axis=1)
  x = out['embedded'] = norm(x, params.get('pre_norm'), epsilon)
  x = drop('embedding', None, x)
  out['blocks'] = []
  axial = 'row' in params['blocks']
  rotary = rotary and (rotary, rotary_grid)
  last = params['blocks']['row'] if axial else params['blocks']
  last = last.get('first', last)
  for layer in range(len(last['attention_norm']['scale'])):
    block = layer_of(params['blocks'], layer)
    for half, axis in ((block['row'], 0), (block['column'], 1)) if axial else ((block, None),):
      x = _block(x, half, layer, epsilon, activation, drop, grid, rotary, axis, post_norm)
    out['blocks'].append(x)
  out['tokens'] = norm(x, params.get('norm'), epsilon)
  if pool in ('map', 'map_patches'):
    x = _map_pool(
      out['tokens'][:, (first + registers) * (pool == 'map_patches') :],
      params[f'{pool}_pool'],
      epsilon,
      activation,
    )
  else:
    x = _pooled(out['tokens'], pool, first, registers)
  x = out['pooled'] = out['pre_logits'] = norm(x, params.get('pooled_norm'), epsilon)
  if 'pre_logits' in params:
    out['pre_logits'] = dense(x, params['pre_logits'])
    x = np.tanh(out['pre_logits'])
  out['logits'] = dense(x, params['head'])
  if 'distillation_token' in params:
    out['logits_of_labels'] = out['logits']
    out['logits_of_teachers'] = dense(out['tokens'][:, 1], params['distillation_head'])
    out['logits'] = (out['logits_of_labels'] + out['logits_of_teachers']) / 2
  return out


def float64(tree):
  if isinstance(tree, dict):
    return {name: float64(value) for name, value in tree.items()}
  return np.asarray(tree, np.float64)


def layer_of(tree, layer):
  if isinstance(tree, dict):
    return {name: layer_of(value, layer) for name, value in tree.items()}
  return tree[layer]


def dense(x, p):
  return x @ p['kernel'] + p['bias']


def norm(x, p, epsilon):
  if p is None:
    return x
  if 'bias' not in p:
    return x / np.sqrt((x**2).mean(-1, keepdims=True) + epsilon) * p['scale']
  variance = ((x - x.mean(-1, keepdims=True)) ** 2).mean(-1, keepdims=True)
  return (x - x.mean(-1, keepdims=True)) / np.sqrt(variance + epsilon) * p['scale'] + p['bias']


def patches(images, p):
  side = p['kernel'].shape[0]
  _, height, width, _ = images.shape
  tokens = []
  for top in range(0, height, side):
    for left in range(0, width, side):
      window = images[:, top : top + side, left : left + side, :]
      tokens.append(np.tensordot(window, p['kernel'], axes=3) + p.get('bias', 0))
  return np.stack(tokens, axis=1)


def _positions(params, grid, tokens):
  """What is added to the tokens."""
  embedding = params.get('position_embedding', 0)
  if not isinstance(embedding, dict):
    return embedding
  half = embedding['rows'].shape[-1]
  added = np.zeros((1, tokens, 2 * half))
  if 'class_token' in embedding:
    added[:, 0] = embedding['class_token'][0]
  for patch, (row, column) in enumerate(np.ndindex(grid)):
    own = np.concatenate([embedding['columns'][0, column], embedding['rows'][0, row]])
    added[0, tokens - math.prod(grid) + patch] = own
  return added


def _of_pair(p, grid, tokens, query, key):
  """The numbers of `position/bias` or `position/keys` for a pair of tokens."""
  first = tokens - math.prod(grid)
  if query < first and key < first:
    return p['among_others'][:, query, key]
  if query < first:
    return p['from_others'][:, query]
  if key < first:
    return p['to_others'][:, key]
  (row, column), (other_row, other_column) = (divmod(token - first, grid[1]) for token in (query, key))
  if p['patches'].shape[2] == 2 * math.prod(grid) - 1:  # offsets of the patches' numbers
    (row, column), (other_row, other_column) = (0, query), (0, key)
  middles = [side // 2 for side in p['patches'].shape[1:]]  # of a line, all but one axis have the middle only
  offsets = (row - other_row, column - other_column)
  cell = [np.clip(middle + offset, 0, 2 * middle) for middle, offset in zip(middles, offsets)]
  return p['patches'][:, *cell]


def _angle(kind, i, size, place, grid, waves):
  """Of pair i of `size` channels of one head, at a patch's (row, column)."""
  name, side = kind
  if name == 'rotary_mixed':
    return place[1] * waves[0][i] + place[0] * waves[1][i]
  rows_first = name in ('rotary_eva', 'rotary_dinov3')
  axis = int((i < size // 4) != rows_first)
  number, own = place[axis], grid[axis]
  if name in ('rotary_eva', 'rotary_pe'):
    number = (number + (name == 'rotary_pe')) / own * (side or own)
  if name == 'rotary_dinov3':
    number = 2 * math.pi * (2 * (number + 0.5) / own - 1)
  base = 10_000.0 if name in ('rotary_eva', 'rotary_pe') else 100.0
  return number * base ** -((i % (size // 4)) / (size // 4))


def _rotated(x, grid, kind, waves):
  """Each pair of channels (i, i + Dh / 2) of one head's queries or keys as a complex number, turned."""
  size = x.shape[-1]
  turned = x.copy()
  for patch, place in enumerate(np.ndindex(grid)):
    token = x.shape[1] - math.prod(grid) + patch
    for i in range(size // 2):
      angle = _angle(kind, i, size, place, grid, waves)
      pair = (x[:, token, i] + 1j * x[:, token, i + size // 2]) * np.exp(1j * angle)
      turned[:, token, i], turned[:, token, i + size // 2] = pair.real, pair.imag
  return turned


def _bias(p, grid, tokens, q, head):
  """(B, N, N) what is added to the logits of a head, whose queries are q (B, N, Dh)."""
  bias = np.zeros((len(q), tokens, tokens))
  for query, key in np.ndindex(tokens, tokens):
    if 'bias' in p:
      bias[:, query, key] = _of_pair(p['bias'], grid, tokens, query, key)[head]
    else:
      relative_key = _of_pair(p['keys'], grid, tokens, query, key)
      bias[:, query, key] = q[:, query] @ relative_key / math.sqrt(q.shape[-1])
  return bias


def _attention(
  x, memory, p, drop_weights=lambda weights: weights, grid=None, rotary=False, allowed=True, epsilon=None
):
  """Head by head; `drop_weights` gets all weights (B, H, Q, N); `allowed` (Q, N): who may attend to whom."""
  heads = p['query']['kernel'].shape[1]
  weights, values = [], []
  for head in range(heads):
    q, k, v = (
      source @ p[name]['kernel'][:, head] + p[name]['bias'][head]
      for name, source in (('query', x), ('key', memory), ('value', memory))
    )
    if 'query_norm' in p:
      q, k = norm(q, p['query_norm'], epsilon), norm(k, p['key_norm'], epsilon)
    if rotary:
      waves = p['position']['waves'][:, head] if 'position' in p else None
      q, k = _rotated(q, grid, rotary, waves), _rotated(k, grid, rotary, waves)
    scores = np.stack([a @ b.T for a, b in zip(q, k)]) / math.sqrt(q.shape[-1])
    if 'position' in p and not rotary:
      scores += _bias(p['position'], grid, x.shape[1], q, head)
    scores = np.where(allowed, scores, -np.inf)
    scores = np.exp(scores - scores.max(-1, keepdims=True))
    weights.append(scores / scores.sum(-1, keepdims=True))
    values.append(v)
  weights = drop_weights(np.stack(weights, axis=1))
  outs = np.concatenate(
    [np.stack([w @ v for w, v in zip(weights[:, head], values[head])]) for head in range(heads)], axis=-1
  )
  outs = norm(outs, p.get('sub_norm'), epsilon)
  return outs @ p['out']['kernel'].reshape(-1, p['out']['kernel'].shape[-1]) + p['out']['bias']


def activated(x, kind):
  if kind == 'relu':
    return np.where(x > 0, x, 0)
  if kind in ('silu', 'quick_gelu'):
    return x / (1 + np.exp(-x * {'silu': 1, 'quick_gelu': 1.702}[kind]))
  if kind == 'gelu':
    return 0.5 * x * (1 + np.vectorize(math.erf)(x / math.sqrt(2)))
  return 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


def mlp(x, p, activation, drop_hidden=lambda x: x, grid=None, epsilon=None):
  if 'dense_gate' in p:
    x = activated(dense(x, p['dense_gate']), activation) * dense(x, p['dense_in'])
  else:
    x = activated(dense(x, p['dense_in']), activation)
  if 'depthwise' in p:
    first = x.shape[1] - math.prod(grid)
    kernel, bias = p['depthwise']['kernel'], p['depthwise']['bias']
    for example, channel in np.ndindex(len(x), x.shape[2]):
      cells = x[example, first:, channel].reshape(grid)
      local = ndimage.correlate(cells, kernel[:, :, channel], mode='constant') + bias[channel]
      x[example, first:, channel] = activated(local, activation).reshape(-1)
  return dense(norm(drop_hidden(x), p.get('sub_norm'), epsilon), p['dense_out'])


def _block(x, p, layer, epsilon, activation, drop, grid, rotary, axis, post_norm):
  """`axis`: 0 to attend to tokens of the same row, 1: of the same column; None: to all."""
  place = None if axis is None else np.indices(grid)[axis].reshape(-1)
  allowed = True if axis is None else place[:, None] == place
  drop_weights = lambda weights: drop('attention_weights', layer, weights)

  def branch(x, p, name, function):
    scale = p.get(f'{name}_scale', 1)
    if post_norm:
      return norm(function(x, p) * scale, p[f'{name}_norm'], epsilon)
    return function(norm(x, p[f'{name}_norm'], epsilon), p) * scale

  def attend(y, p):
    return drop(
      'attention_out', layer, _attention(y, y, p['attention'], drop_weights, grid, rotary, allowed, epsilon)
    )

  def widen(y, p):
    hidden = lambda hidden: drop('mlp_hidden', layer, hidden)
    return drop('mlp_out', layer, mlp(y, p['mlp'], activation, hidden, grid, epsilon))

  if 'mlp_norm' not in p and 'first' not in p:  # in parallel
    y = norm(x, p['attention_norm'], epsilon)
    return x + drop('attention_path', layer, (attend(y, p) + widen(y, p)) * p.get('both_scale', 1))
  parts = [p['first'], p['second']] if 'first' in p else [p]
  x = x + drop('attention_path', layer, sum(branch(x, part, 'attention', attend) for part in parts))
  return x + drop('mlp_path', layer, sum(branch(x, part, 'mlp', widen) for part in parts))


def _pooled(x, pool, first, registers):
  """`first` class tokens and then `registers` that no pool reads."""
  others = [i for i in range(x.shape[1]) if not first <= i < first + registers]
  if pool == 'token':
    return x[:, 0]
  if pool == 'gap':
    return x[:, others].mean(1)
  if pool == 'token_gap':
    return np.concatenate([x[:, 0], x[:, 1 + registers :].mean(1)], axis=1)
  patches = x[:, first + registers :]
  if pool.endswith('_patches'):
    mean, largest = patches.mean(1), patches.max(1)
    return {'gap': mean, 'max': largest, 'avgmax': (mean + largest) / 2}[pool.removesuffix('_patches')]
  return x


def _map_pool(x, p, epsilon, activation):
  y = _attention(np.repeat(p['probe'], len(x), axis=0), x, p['attention'])
  return (y + mlp(norm(y, p['norm'], epsilon), p['mlp'], activation))[:, 0]
