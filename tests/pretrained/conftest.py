"""How precise comparisons are; and lets timm and transformers import PyPI's torchvision beside a PyTorch without CUDA.

Its compiled operators cannot be loaded there, and it describes two of them all the same. Its transforms need none.
"""

import pathlib

import jax
import pytest

try:
  import torch
except ImportError:
  torch = None


def _declare_operators():
  """Declares what torchvision describes, where its library cannot be loaded; lasts as long as what is returned."""
  for file in pathlib.Path(torch.__file__).parents[1].glob('torchvision/_C*.so') if torch else ():
    try:
      torch.ops.load_library(file)
    except OSError:
      operators = torch.library.Library('torchvision', 'FRAGMENT')
      for name in ('nms', 'qnms'):
        if not hasattr(torch.ops.torchvision, name):
          operators.define(f'{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor')
      return operators
  return None


_operators = _declare_operators()


@pytest.fixture(scope='module')
def precise():
  """The highest precision on both sides, and one thread."""
  torch.set_num_threads(1)
  with jax.default_matmul_precision('highest'):
    yield
