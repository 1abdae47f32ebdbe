"""The forward pass of an MLP-Mixer in NumPy, float64 and plain loops, to test ours against. No JAX."""

import numpy as np
from numpy_vit import activated, dense, float64, layer_of, mlp, norm, patches


def forward(
  params, images, *, epsilon=1e-6, activation='gelu_tanh', norm=norm, skip=lambda place, layer, x: x
):
  """'patches', 'blocks' (the tokens after each), 'tokens' and 'logits', of parameters under our names.

  `norm` is called with tokens, parameters and epsilon; `skip` with each branch, its name and its block.
  """
  params = float64(params)
  x = patches(np.asarray(images, np.float64), params['patch_embedding'])
  out = {'patches': x, 'blocks': []}
  for layer in range(len(params['blocks']['channel_norm']['scale'])):
    p = layer_of(params['blocks'], layer)
    if 'gate' in p['channel_mlp']:
      x = x + skip(
        'mlp_path', layer, _gated(norm(x, p['channel_norm'], epsilon), p['channel_mlp'], activation)
      )
      out['blocks'].append(x)
      continue
    normed = norm(x, p['token_norm'], epsilon)
    mixed = np.empty_like(x)
    for channel in range(x.shape[-1]):  # each by itself, with the weights of all
      one = normed[:, :, channel]
      linear = 'kernel' in p['token_mlp']
      mixed[:, :, channel] = dense(one, p['token_mlp']) if linear else mlp(one, p['token_mlp'], activation)
    x = x + skip('attention_path', layer, mixed * p.get('token_scale', 1))
    y = mlp(norm(x, p['channel_norm'], epsilon), p['channel_mlp'], activation)
    x = x + skip('mlp_path', layer, y * p.get('channel_scale', 1))
    out['blocks'].append(x)
  out['tokens'] = norm(x, params['norm'], epsilon)
  out['logits'] = dense(out['tokens'].mean(axis=1), params['head'])
  return out


def affine(x, p, epsilon):
  return x * p['scale'] + p['bias']


def _gated(x, p, activation):
  """Half of the hidden units, times the other half of which each is a sum over all tokens."""
  values, gates = np.split(activated(dense(x, p['dense_in']), activation), 2, axis=-1)
  gates = norm(gates, p['gate_norm'], 1e-5)
  mixed = np.einsum('bnc,nm->bmc', gates, p['gate']['kernel']) + p['gate']['bias'][:, None]
  return dense(values * mixed, p['dense_out'])
