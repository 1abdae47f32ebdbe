"""Small models of transformers beside ours, and small models of ours for its folders."""

import dataclasses
import pathlib

import jax
import numpy as np
import pytest
from flax import nnx

from vit_jax import config
from vit_jax.data.preprocess import Preprocess
from vit_jax.foundation import pytrees
from vit_jax.models.base import Architecture
from vit_jax.pretrained.base import Pretrained

REASON = "needs the extra 'peers' (pip install -e '.[peers]')"
torch = pytest.importorskip('torch', reason=REASON)
transformers = pytest.importorskip('transformers', reason=REASON)
safetensors = pytest.importorskip('safetensors', reason=REASON)
safetensors_numpy = pytest.importorskip('safetensors.numpy', reason=REASON)

SIZES = {'hidden_size': 32, 'num_hidden_layers': 3, 'num_attention_heads': 4, 'patch_size': 8}
MLP = {'intermediate_size': 48}
# A tower of images and one of texts, of two blocks.
VISION = {**SIZES, **MLP, 'num_hidden_layers': 2, 'image_size': 16}
TEXT = {name: size for name, size in VISION.items() if name not in ('patch_size', 'image_size')} | {
  'vocab_size': 20,
  'max_position_embeddings': 8,
}
PEERS = {
  'vit': ('ViTForImageClassification', {**MLP, 'image_size': [16, 32], 'num_labels': 5}),
  'vit tanh': (
    'ViTForImageClassification',
    {**MLP, 'image_size': 16, 'hidden_act': 'gelu_pytorch_tanh', 'layer_norm_eps': 1e-2},
  ),
  'vit gray, no bias': (
    'ViTForImageClassification',
    {**MLP, 'image_size': 16, 'num_channels': 1, 'qkv_bias': False},
  ),
  'vit model': ('ViTModel', {**MLP, 'image_size': 16}),
  'deit': ('DeiTForImageClassification', {**MLP, 'image_size': 16, 'num_labels': 5}),
  'deit distilled': ('DeiTForImageClassificationWithTeacher', {**MLP, 'image_size': 16, 'num_labels': 5}),
  'deit model': ('DeiTModel', {**MLP, 'image_size': 16}),
  'dinov2': ('Dinov2ForImageClassification', {'mlp_ratio': 2, 'image_size': 16, 'num_labels': 5}),
  'dinov2 model': ('Dinov2Model', {'mlp_ratio': 2, 'image_size': 16}),
  'registers': (
    'Dinov2WithRegistersForImageClassification',
    {'mlp_ratio': 2, 'image_size': 16, 'num_labels': 5, 'num_register_tokens': 3},
  ),
  'registers model': ('Dinov2WithRegistersModel', {'mlp_ratio': 2, 'image_size': 16}),
}


def make_peer(name: str, seed: int = 0, **changes):
  """A small model of transformers, in which no parameter is zero, one or equal to another."""
  cls, options = PEERS[name]
  cls = getattr(transformers, cls)
  return randomise(cls(cls.config_class(**{**SIZES, **options, **changes})), seed)


def randomise(model, seed: int):
  generator = torch.Generator().manual_seed(seed)
  with torch.no_grad():
    for key, parameter in model.named_parameters():
      noise = torch.randn(parameter.shape, generator=generator)
      center = 1.0 if 'norm' in key and key.endswith('weight') else 0.0
      scale = 0.15 if parameter.ndim == 2 else 0.3
      parameter.copy_(center + scale * noise)
  return model.eval()


def images_of(size: tuple[int, int], channels: int = 3) -> np.ndarray:
  return np.random.default_rng(0).normal(size=(2, *size, channels)).astype(np.float32)


def make_images(pretrained: Pretrained, size: tuple[int, int] | None = None) -> np.ndarray:
  """Of the size that the model was built for, or another."""
  architecture = pretrained.architecture
  return images_of(size or architecture.image_size, architecture.channels)


def to_torch(images: np.ndarray):
  return torch.from_numpy(np.ascontiguousarray(images.transpose(0, 3, 1, 2)))


def make_ours(pretrained: Pretrained) -> nnx.Module:
  graphdef, shapes = pretrained.architecture.graph_and_shapes()
  flat = pytrees.flatten(pretrained.params)
  assert {path: leaf.shape for path, leaf in flat.items()} == {
    path: leaf.shape for path, leaf in shapes.items()
  }
  return nnx.merge(graphdef, jax.tree.map(jax.numpy.asarray, pretrained.params))


def outputs(peer, images: np.ndarray):
  with torch.no_grad():
    return peer(to_torch(images), output_hidden_states=True)


@jax.jit
def run(ours: nnx.Module, images: np.ndarray):
  """The tokens of every layer, those after the last norm, what the head reads, and the logits."""
  states = ours.hidden_states(images)
  final = ours.features(images)
  return states, final, ours.head_input(final), ours(images)


def assert_same(pretrained: Pretrained, peer, *, logits: str = 'logits') -> None:
  """All hidden states, and the logits or what a model without head gives."""
  images = make_images(pretrained)
  states, final, pooled, mine = run(make_ours(pretrained), images)
  theirs = outputs(peer, images)
  assert len(theirs.hidden_states) == len(states)
  for state, other in zip(states, theirs.hidden_states, strict=True):
    np.testing.assert_allclose(state, other, atol=1e-4, rtol=0)
  if pretrained.architecture.num_classes:
    np.testing.assert_allclose(mine, theirs[logits], atol=1e-4, rtol=0)
  else:
    np.testing.assert_allclose(final, theirs.last_hidden_state, atol=1e-4, rtol=0)
    np.testing.assert_allclose(pooled, theirs.pooler_output, atol=1e-4, rtol=0)


def assert_differences_are_said(whole: Pretrained, lone: Pretrained) -> None:
  """What a file alone is taken for and its folder is not stands in the notes, by the names of our options."""
  said = ' '.join(lone.notes)
  model, other = (pretrained.architecture.model.resolved() for pretrained in (whole, lone))
  for field in dataclasses.fields(model):
    # By the tensors, by the size of the images, and by the kind of positions.
    told = field.name in ('layer_scale', 'cut_images', 'rotary_grid' * (model.position != other.position))
    if not told and getattr(model, field.name) != getattr(other, field.name):
      assert f'{field.name} {getattr(other, field.name)!r}' in said
  assert whole.preprocess == lone.preprocess or str(lone.preprocess) in said


def load_whole(cls, folder: pathlib.Path):
  """The model of transformers, which finds each of its tensors there, and no other."""
  peer, info = cls.from_pretrained(folder, output_loading_info=True)
  assert not any(info.values()), info
  return peer.eval()


def tensors_in(folder: pathlib.Path) -> dict[str, np.ndarray]:
  return safetensors_numpy.load_file(folder / 'model.safetensors')


def metadata(folder: pathlib.Path) -> dict[str, str]:
  with safetensors.safe_open(folder / 'model.safetensors', 'np') as file:
    return file.metadata()


def make_pretrained(
  model: config.ViTConfig, *, num_classes: int = 3, image_size=(16, 16), **options
) -> Pretrained:
  sizes = {'patch': 8, 'width': 32, 'mlp_dim': 64, 'depth': 2, 'heads': 4}
  options_of_model = {field.name for field in dataclasses.fields(model)}
  sizes = {name: size for name, size in sizes.items() if name in options_of_model}
  model = dataclasses.replace(model, variant='custom', **sizes)
  architecture = Architecture(model, image_size, 3, num_classes)
  rng = np.random.default_rng(3)
  flat = {
    path: (0.2 * rng.normal(size=leaf.shape) + path.endswith('scale')).astype(np.float32)
    for path, leaf in sorted(architecture.shapes().items())
  }
  preprocess = Preprocess.from_range(image_size, -1, 1)
  return Pretrained(architecture, pytrees.unflatten(flat), preprocess, **options)
