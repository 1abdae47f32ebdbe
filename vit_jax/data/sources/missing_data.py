"""How to get the data sets that recipes name, for the error where one is missing."""

from collections.abc import Mapping

_SUBSTITUTES = (
  'train on less: the recipe :imagenet2012 of the same config or, of a folder with a sub-folder of images for '
  'each class, --config.data.source=folder:/path:train --config.evaluators.val.split=val'
)

_WAYS: Mapping[str, str] = {
  'imagenet21k': (
    'get it with: hf download timm/imagenet-22k-wds --repo-type dataset --local-dir ~/imagenet21k, and '
    'prepare it with: vit_jax prepare imagenet21k ~/imagenet21k (docs/data.md has other sources); '
    f'or {_SUBSTITUTES}'
  ),
  'imagenet2012': (
    'download ILSVRC2012_img_train.tar, ILSVRC2012_img_val.tar and ILSVRC2012_devkit_t12.tar.gz from '
    'image-net.org into a folder, and prepare them with: vit_jax prepare imagenet2012 /that/folder '
    '(docs/data.md has other sources); or train on a folder with a sub-folder of images for each class: '
    '--config.data.source=folder:/path:train --config.evaluators.val.split=val'
  ),
  'jft_300m': (
    "it is Google's and nobody else has it; COYO-Labeled-300M is its public counterpart (docs/data.md); or "
    'choose the recipe :imagenet21k or :imagenet2012 of the same config'
  ),
}


def advice(name: str) -> str | None:
  """What to do where a data set is missing, without a full stop; None for one that no recipe names."""
  return _WAYS.get(name.split(':')[0])
