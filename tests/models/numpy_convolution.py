"""Convolutions and their gradients by their definition, in NumPy float64."""

import itertools

import numpy as np


def forward(x, kernel, stride, padding):
  """The output, one number of the kernel after the other."""
  x = np.pad(x, ((0, 0), *padding, (0, 0)))
  height, width = kernel.shape[:2]
  rows, columns = (x.shape[1] - height) // stride + 1, (x.shape[2] - width) // stride + 1
  y = np.zeros((len(x), rows, columns, kernel.shape[3]))
  for i, j in itertools.product(range(height), range(width)):
    pixels = x[:, i : i + stride * rows : stride, j : j + stride * columns : stride][:, :rows, :columns]
    y += pixels @ kernel[i, j]
  return y


def gradients(x, kernel, dy, stride, padding):
  """Those of the sum of y * dy by x and by the kernel."""
  padded = np.pad(x, ((0, 0), *padding, (0, 0)))
  dx, dkernel = np.zeros_like(padded), np.zeros_like(kernel)
  for b, r, c in np.ndindex(dy.shape[:3]):
    window = np.s_[b, stride * r : stride * r + kernel.shape[0], stride * c : stride * c + kernel.shape[1]]
    dx[window] += kernel @ dy[b, r, c]
    dkernel += padded[window][..., None] * dy[b, r, c]
  (top, _), (left, _) = padding
  return dx[:, top : top + x.shape[1], left : left + x.shape[2]], dkernel
