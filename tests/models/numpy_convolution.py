"""Convolutions and their gradients by their definition, in NumPy float64."""

import numpy as np


def windows(x, size, stride, padding, fill=0.0):
  """(B, rows, columns, size, size, C): what a kernel sees at each of its places."""
  x = np.pad(x, ((0, 0), *padding, (0, 0)), constant_values=fill)
  found = np.lib.stride_tricks.sliding_window_view(x, (size, size), axis=(1, 2))
  return found[:, ::stride, ::stride].transpose(0, 1, 2, 4, 5, 3)


def forward(x, kernel, stride, padding):
  """The output: at each place the sum over the window and its channels."""
  return np.tensordot(windows(x, len(kernel), stride, padding), kernel, axes=3)


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
