"""The ResNet of BiT in NumPy, float64, to test ours against. No JAX."""

import numpy as np
from numpy_resnet import normalise


def forward(params, images, epsilon=1e-5):
  """{'units': the feature map after each bottleneck, 'final': after the last norm, 'logits'}."""
  x = _windows(np.asarray(images, np.float64), 7, 2)
  x = np.tensordot(x, _standardised(params['root']), axes=3)
  x = _windows(x, 3, 2).max(axis=(3, 4))
  units = []
  for block in sorted(name for name in params if name.startswith('block')):
    for unit in sorted(params[block], key=lambda name: int(name.removeprefix('unit'))):
      stride = 2 if block != 'block1' and unit == 'unit1' else 1
      x = _unit(x, params[block][unit], stride, epsilon)
      units.append(x)
  final = np.maximum(normalise(x, params['norm'], epsilon), 0)
  head = {name: np.asarray(leaf, np.float64) for name, leaf in params['head'].items()}
  logits = final.mean(axis=(1, 2)) @ head['kernel'] + head['bias']
  return {'units': units, 'final': final, 'logits': logits}


def _unit(x, p, stride, epsilon):
  active = np.maximum(normalise(x, p['norm1'], epsilon), 0)
  shortcut = x
  if 'projection' in p:
    shortcut = active[:, ::stride, ::stride] @ _standardised(p['projection'])[0, 0]
  y = active @ _standardised(p['conv1'])[0, 0]
  y = np.maximum(normalise(y, p['norm2'], epsilon), 0)
  y = np.tensordot(_windows(y, 3, stride), _standardised(p['conv2']), axes=3)
  y = np.maximum(normalise(y, p['norm3'], epsilon), 0) @ _standardised(p['conv3'])[0, 0]
  return shortcut + y


def _standardised(p):
  """Output by output; the epsilon is added to the population variance."""
  kernel = np.asarray(p['kernel'], np.float64)
  centred = kernel - kernel.mean(axis=(0, 1, 2))
  return centred / np.sqrt((centred**2).mean(axis=(0, 1, 2)) + 1e-10)


def _windows(x, size, stride):
  """(B, rows, columns, size, size, C), of x with half a window of zeros on every side."""
  half = size // 2
  x = np.pad(x, ((0, 0), (half, half), (half, half), (0, 0)))
  windows = np.lib.stride_tricks.sliding_window_view(x, (size, size), axis=(1, 2))
  return windows[:, ::stride, ::stride].transpose(0, 1, 2, 4, 5, 3)
