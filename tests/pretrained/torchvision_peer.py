"""torchvision, which timm and transformers import, also where PyPI's stands beside a PyTorch without CUDA.

Its compiled operators cannot be loaded then, and it describes two of them all the same. Its transforms need none.
"""

import pathlib

import pytest

torch = pytest.importorskip('torch', reason='needs torch and torchvision')


def _declare_operators() -> torch.library.Library | None:
  """Declares what torchvision describes, where its library cannot be loaded; lasts as long as what is returned."""
  for file in pathlib.Path(torch.__file__).parents[1].glob('torchvision/_C*.so'):
    try:
      torch.ops.load_library(file)
    except OSError:
      operators = torch.library.Library('torchvision', 'DEF')
      for name in ('nms', 'qnms'):
        operators.define(f'{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor')
      return operators
  return None


_operators = _declare_operators()
torchvision = pytest.importorskip('torchvision', reason='needs torch and torchvision', exc_type=ImportError)
