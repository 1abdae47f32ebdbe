"""Attention in NumPy's float64, to compare with."""

import numpy as np


def attention_in_float64(query, key, value, grad):
  """Attention of (B, N, H, Dh), and the gradients of query, key and value."""
  query, key, value, grad = (np.asarray(x, np.float64) for x in (query, key, value, grad))
  scale = query.shape[-1] ** -0.5
  logits = np.einsum('bqhd,bnhd->bhqn', query, key) * scale
  weights = np.exp(logits - logits.max(axis=-1, keepdims=True))
  weights /= weights.sum(axis=-1, keepdims=True)
  grad_weights = np.einsum('bqhd,bnhd->bhqn', grad, value)
  grad_logits = weights * (grad_weights - (grad_weights * weights).sum(axis=-1, keepdims=True)) * scale
  return (
    np.einsum('bhqn,bnhd->bqhd', weights, value),
    np.einsum('bhqn,bnhd->bqhd', grad_logits, key),
    np.einsum('bhqn,bqhd->bnhd', grad_logits, query),
    np.einsum('bhqn,bqhd->bnhd', weights, grad),
  )
