"""The ResNet of BiT in NumPy, float64, to test ours against. No JAX."""

import numpy as np
import numpy_convolution
from numpy_resnet import normalise


def forward(params, images, epsilon=1e-5):
  """{'units': the feature map after each bottleneck, 'final': after the last norm, 'logits'}."""
  x = _conv(np.asarray(images, np.float64), params['root'], 2)
  x = numpy_convolution.windows(x, 3, 2, _around(3)).max(axis=(3, 4))  # zeros around also here
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
    shortcut = _conv(active, p['projection'], stride)
  y = np.maximum(normalise(_conv(active, p['conv1']), p['norm2'], epsilon), 0)
  y = np.maximum(normalise(_conv(y, p['conv2'], stride), p['norm3'], epsilon), 0)
  return shortcut + _conv(y, p['conv3'])


def _standardised(p):
  """Output by output; the epsilon is added to the population variance."""
  kernel = np.asarray(p['kernel'], np.float64)
  centred = kernel - kernel.mean(axis=(0, 1, 2))
  return centred / np.sqrt((centred**2).mean(axis=(0, 1, 2)) + 1e-10)


def _conv(x, p, stride=1):
  kernel = _standardised(p)
  return numpy_convolution.forward(x, kernel, stride, _around(len(kernel)))


def _around(size):
  """The padding of rows and of columns: half a window on every side."""
  return ((size // 2, size // 2),) * 2
