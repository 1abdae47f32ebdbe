"""The ResNet stem of a hybrid in NumPy, float64 and plain loops, to test ours against. No JAX."""

import math

import numpy as np
import numpy_convolution


def forward(stem, images, epsilon=1e-6):
  """(B, H, W, C) -> (B, h, w, C'): the feature map, of a nested dict of arrays under our names."""
  x = convolve(np.asarray(images, np.float64), stem['root'], 2)
  x = np.maximum(normalise(x, stem['root_norm'], epsilon), 0)
  x = numpy_convolution.windows(x, 3, 2, _same(x, 3, 2), fill=-np.inf).max(axis=(3, 4))
  for block in sorted(name for name in stem if name.startswith('block')):
    for unit in sorted(stem[block]):
      stride = 2 if block != 'block1' and unit == 'unit1' else 1
      x = _unit(x, stem[block][unit], stride, epsilon)
  return x


def _unit(x, p, stride, epsilon):
  y = np.maximum(normalise(convolve(x, p['conv1'], 1), p['norm1'], epsilon), 0)
  y = np.maximum(normalise(convolve(y, p['conv2'], stride), p['norm2'], epsilon), 0)
  y = normalise(convolve(y, p['conv3'], 1), p['norm3'], epsilon)
  if stride > 1 or x.shape[-1] != y.shape[-1]:
    x = normalise(convolve(x, p['projection'], stride), p['projection_norm'], epsilon)
  return np.maximum(x + y, 0)


def standardise(kernel):
  """Output by output; population deviation, the epsilon added to it."""
  kernel = np.array(kernel, np.float64)
  for output in range(kernel.shape[-1]):
    weights = kernel[..., output]
    deviation = math.sqrt(((weights - weights.mean()) ** 2).mean())
    kernel[..., output] = (weights - weights.mean()) / (deviation + 1e-5)
  return kernel


def convolve(x, p, stride):
  kernel = standardise(p['kernel'])
  return numpy_convolution.forward(x, kernel, stride, _same(x, len(kernel), stride))


def _same(x, size, stride):
  """The padding of rows and of columns, as TensorFlow's 'SAME': what is odd of it at the end."""
  totals = [max((-(-side // stride) - 1) * stride + size - side, 0) for side in x.shape[1:3]]
  return [(total // 2, total - total // 2) for total in totals]


def normalise(x, p, epsilon):
  """32 groups of neighbouring channels, each normalised over an example's positions and its channels."""
  y = np.empty_like(x)
  size = x.shape[-1] // 32
  for group in range(32):
    channels = slice(group * size, (group + 1) * size)
    part = x[..., channels]
    mean = part.mean(axis=(1, 2, 3), keepdims=True)
    variance = ((part - mean) ** 2).mean(axis=(1, 2, 3), keepdims=True)
    y[..., channels] = (part - mean) / np.sqrt(variance + epsilon)
  return y * np.asarray(p['scale'], np.float64) + np.asarray(p['bias'], np.float64)
