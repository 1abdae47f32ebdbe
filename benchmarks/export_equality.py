"""Compares exported models with `vit_jax.load`'s on photographs of mixed sizes: how far probabilities are apart.

python benchmarks/export_equality.py --photos=/path/to/photos --most=100 Ti/16 B/16 SigLIP
python benchmarks/export_equality.py --photos=/path/to/photos --checkpoint=runs/mine

Networks that are named are of the published shapes, with random parameters; the head makes 1,000 logits of deviation 2
of how a photograph's features differ from the mean, so that photographs differ in their classes. Each is written as
ONNX, which takes the photographs' bytes, and as StableHLO; a line has the processor seconds that writing took.
"""

import dataclasses
import pathlib
import sys
import tempfile
import time

import jax
import jax.numpy as jnp
import numpy as np
from absl import flags
from flax import nnx
from PIL import Image

import vit_jax
from vit_jax import export
from vit_jax.data.image_files import image_files
from vit_jax.data.preprocess import Preprocess
from vit_jax.export import inference, writing
from vit_jax.loaded_model import LoadedModel
from vit_jax.models.base import Architecture
from vit_jax.models.batch_norm import BatchNorm
from vit_jax.models.efficientnet import EfficientNetConfig
from vit_jax.models.mixer import MixerConfig
from vit_jax.models.resnet import ResNetConfig
from vit_jax.models.vit_config import ViTConfig

_PHOTOS = flags.DEFINE_string('photos', 'photos', 'Folder of photographs.')
_MOST = flags.DEFINE_integer('most', 100, 'Photographs, evenly spread over the folder.')
_CHECKPOINT = flags.DEFINE_list('checkpoint', [], 'Checkpoints to compare too.')
_DEPTH = flags.DEFINE_integer('depth', None, 'Blocks, fewer than published.')

_CLIP = {'pre_norm': True, 'activation': 'quick_gelu', 'patch_bias': False, 'norm_epsilon': 1e-5}
_DINO = {'register_tokens': 4, 'layer_scale': 1.0, 'activation': 'gelu'}
MODELS = {
  **{name: ViTConfig(variant=name) for name in ('Ti/16', 'S/16', 'B/16', 'L/16', 'H/14')},
  'hybrid': ViTConfig(variant='R50+B/16'),
  'Mixer': MixerConfig(variant='Mixer-B/16'),
  'BiT': ResNetConfig(variant='R50x1'),
  'EfficientNet': EfficientNetConfig(variant='B0'),
  'SigLIP': ViTConfig(variant='B/16', pool='map', class_token=False),
  'CLIP': ViTConfig(variant='B/32', **_CLIP, pre_logits='linear', pre_logits_size=512, cosine_head=True),
  'DINOv3': ViTConfig(variant='B/16', position='rotary_dinov3', **_DINO),
}


def main() -> None:
  names = flags.FLAGS(sys.argv)[1:]
  files = image_files([_PHOTOS.value])
  numbers = np.linspace(0, len(files) - 1, min(_MOST.value, len(files))).astype(int)
  photos = [Image.open(files[number]).convert('RGB') for number in numbers]
  for name in [*names, *_CHECKPOINT.value]:
    if name in names:
      model = random_model(MODELS[name], _DEPTH.value)
      spread(model, photos[:32])
    else:
      model = vit_jax.load(name)
    print(name, compared(model, photos), flush=True)


def random_model(config, depth: int | None = None) -> LoadedModel:
  """A network of 224 pixels and 1,000 classes with random parameters."""
  if depth:
    config = dataclasses.replace(config, depth=depth)
  graphdef, shapes = nnx.split(Architecture(config, (224, 224), 3, 1000).abstract())
  rng = np.random.default_rng(0)

  def draw(path, leaf):
    name = jax.tree_util.keystr(path)
    deviation = 0.02
    if leaf.ndim > 3 and 'kernel' in name and isinstance(config, ResNetConfig | EfficientNetConfig):
      deviation = np.sqrt(2 / np.prod(leaf.shape[-4:-1]))  # so that activations keep their size
    values = rng.standard_normal(leaf.shape, np.float32) * deviation
    return jnp.asarray(values + ('scale' in name or 'var' in name), leaf.dtype)

  module = nnx.merge(graphdef, jax.tree_util.tree_map_with_path(draw, shapes))
  return LoadedModel(module, Preprocess((224, 224), shorter=256, method='bicubic', antialias=True), None)


def spread(model: LoadedModel, photos) -> None:
  """Gives a network a head whose logits have a deviation of 2 over photographs, and their statistics to its norms."""
  for _, part in nnx.iter_modules(model.module):
    if isinstance(part, BatchNorm):
      part.momentum = 0.0
  if isinstance(model.config, EfficientNetConfig):
    model.module(model.preprocess(photos), keys=jax.random.split(jax.random.key(0), len(photos)))
  features = np.concatenate([model.embeddings(model.preprocess([photo])) for photo in photos])
  head, rng = model.module.head, np.random.default_rng(1)
  if getattr(model.config, 'cosine_head', False):
    features = features / np.linalg.norm(features, axis=1, keepdims=True)
  directions = rng.standard_normal(head.kernel.shape, np.float32)
  logits = (features - features.mean(axis=0)) @ directions
  head.kernel[...] = jnp.asarray(directions * 2 / logits.std(axis=0))
  if head.bias is not None:
    head.bias[...] = -features.mean(axis=0) @ head.kernel[...]


def compared(model: LoadedModel, photos) -> str:
  """The largest differences of both formats from the model, and the seconds that each took to write."""
  outputs = ('probabilities',) if model.num_classes else ('embeddings',)
  graphdef, state = nnx.split(model.module)
  of = inference.function(model, outputs)
  ours = jax.jit(lambda state, images: of(nnx.merge(graphdef, state), images)[outputs[0]])
  wanted = np.concatenate([ours(state, model.preprocess([photo])) for photo in photos])
  classes = len(set(wanted.argmax(axis=1)))
  parts = [f'{len(photos)} photos, {classes} classes, probabilities to {wanted.max():.2f}']
  for kind, given in (('onnx', 'images'), ('stablehlo', 'tensor')):
    with tempfile.TemporaryDirectory() as folder:
      begun = time.process_time()
      asked = {'format': kind, 'input': given, 'precision': 'float32', 'outputs': outputs, 'source': 'x'}
      writing.write(model, pathlib.Path(folder), **asked)
      seconds = time.process_time() - begun
      written = export.read(folder)
      found = np.concatenate([written([photo]) for photo in photos])
      parts.append(f'{kind} {np.abs(found - wanted).max():.1e} ({seconds:.1f} s)')
  return '; '.join(parts)


if __name__ == '__main__':
  main()
