"""The forward pass of an MLP-Mixer in NumPy, float64 and plain loops, to test ours against. No JAX."""

import numpy as np
from numpy_vit import dense, float64, layer_of, mlp, norm, patches


def forward(params, images, *, epsilon=1e-6, activation='gelu_tanh', skip=lambda place, layer, x: x):
  """'patches', 'blocks' (the tokens after each), 'tokens' and 'logits', of parameters under our names.

  `skip` is called with each branch, its name and its block.
  """
  params = float64(params)
  x = patches(np.asarray(images, np.float64), params['patch_embedding'])
  out = {'patches': x, 'blocks': []}
  for layer in range(len(params['blocks']['token_norm']['scale'])):
    p = layer_of(params['blocks'], layer)
    normed = norm(x, p['token_norm'], epsilon)
    mixed = np.empty_like(x)
    for channel in range(x.shape[-1]):  # each by itself, with the weights of all
      mixed[:, :, channel] = mlp(normed[:, :, channel], p['token_mlp'], activation)
    x = x + skip('attention_path', layer, mixed)
    x = x + skip('mlp_path', layer, mlp(norm(x, p['channel_norm'], epsilon), p['channel_mlp'], activation))
    out['blocks'].append(x)
  out['tokens'] = norm(x, params['norm'], epsilon)
  out['logits'] = dense(out['tokens'].mean(axis=1), params['head'])
  return out
