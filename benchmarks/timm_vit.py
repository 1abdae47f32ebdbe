"""The other peer of inference.py and train_step.py: timm's ViT.

In an environment of its own, for tests that use transformers do not run where this torchvision is installed:

pip install -e '.[peers]' && pip install --no-deps timm torchvision==0.28.0
"""

from typing import Any

MODELS = {
  'Ti/16': 'vit_tiny_patch16_224',
  'S/16': 'vit_small_patch16_224',
  'B/16': 'vit_base_patch16_224',
  'L/16': 'vit_large_patch16_224',
  'H/14': 'vit_huge_patch14_224',
}


def declare_torchvision_operators() -> None:
  """Lets timm and transformers import torchvision on a machine without CUDA; call it before either.

  torchvision's wheel for CUDA cannot load its operators here, and its import stops where torch knows no operator of
  that name. No ViT calls one, so their declaration is enough. A torchvision that can be imported stays as it is.
  """
  import torch

  try:
    import torchvision  # noqa: F401
  except ModuleNotFoundError:
    return
  except RuntimeError:  # the operator torchvision::nms does not exist
    pass
  else:
    return
  library = torch.library.Library('torchvision', 'FRAGMENT')
  for name in ('nms', 'qnms'):
    if not hasattr(torch.ops.torchvision, name):
      library.define(f'{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor')
  _kept.append(library)


_kept: list[Any] = []  # torch forgets what a library declared when the library is gone


def create(variant: str, **options: Any) -> Any:
  """timm.create_model of a size, for 1,000 classes and 224 pixels; `options` are timm's."""
  import timm

  return timm.create_model(MODELS[variant], **options)
