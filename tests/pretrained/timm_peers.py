"""timm's models and their files, small."""

import pathlib

import pytest

REASON = 'needs timm, which needs torchvision'
timm = pytest.importorskip('timm', reason=REASON, exc_type=ImportError)
hub = pytest.importorskip('timm.models._hub', reason=REASON)

SIZES = {'embed_dim': 32, 'depth': 3, 'num_heads': 4, 'patch_size': 8, 'img_size': 16, 'num_classes': 5}


def save(peer, folder: pathlib.Path) -> None:
  hub.save_for_hf(peer, folder, safe_serialization=True)
