"""The fixtures of the original code, and changed copies of them."""

import pathlib

import jax
import numpy as np

import vit_jax
from vit_jax.data.preprocess import Preprocess
from vit_jax.foundation import pytrees
from vit_jax.models.base import Architecture, ModelConfig
from vit_jax.pretrained import formats
from vit_jax.pretrained.base import Pretrained
from vit_jax.pretrained.released import ReleasedFormat
from vit_jax.pretrained.runs import RunFormat

# name -> what no tensor tells
FIXTURES = {
  'a_vit_token': {},
  'b_vit_gap': {},
  'c_vit_token_rep32': {},
  'a4_vit_token_unpooled': {'pool': 'none'},
  'd1_hybrid_1_1_w05': {},
  'd2_hybrid_stem_only_w05': {},
  'e_mixer': {},
}
NAMINGS = {'2020': 'released', 'linen': 'linen'}
CASES = [(name, naming) for name in FIXTURES for naming in NAMINGS if (name, naming) != ('e_mixer', '2020')]


def path(golden: pathlib.Path, name: str, naming: str = '2020') -> pathlib.Path:
  return golden / f'{name}.{NAMINGS[naming]}.npz'


def read(file: pathlib.Path, image_size: tuple[int, int] | None = None, **told) -> Pretrained:
  """A checkpoint of any format."""
  return formats.read(file, image_size=image_size, told=told)


def write(pretrained: Pretrained, file: pathlib.Path) -> tuple[str, ...]:
  """Writes an .npz; the notes."""
  return ReleasedFormat().write(pretrained, file)


def write_random(
  model: ModelConfig, file: pathlib.Path, *, image_size: tuple[int, int], num_classes: int
) -> pathlib.Path:
  """Writes an .npz of a model with random parameters, all of which matter; its path."""
  architecture = Architecture(model.resolved(), image_size, 3, num_classes)
  rng = np.random.default_rng(0)
  flat = {
    name: 0.3 * rng.standard_normal(leaf.shape, np.float32) for name, leaf in architecture.shapes().items()
  }
  preprocess = Preprocess.from_range(image_size, -1.0, 1.0)
  write(Pretrained(architecture, pytrees.unflatten(flat), preprocess), file)
  return file


def write_run(pretrained: Pretrained, workdir: pathlib.Path) -> None:
  """Writes a run."""
  RunFormat().write(pretrained, workdir)


def write_folder(pretrained: Pretrained, folder: pathlib.Path, kind: str = 'hf') -> tuple[str, ...]:
  """Writes a Hugging Face folder of a kind, or of the first that fits; the notes."""
  writer, _ = formats.written_by(kind, pretrained)
  return writer.write(pretrained, folder)


def tensors(file: pathlib.Path) -> dict[str, np.ndarray]:
  with np.load(file, allow_pickle=False) as archive:
    return dict(archive)


def logits(file: str | pathlib.Path, images: np.ndarray, **options) -> np.ndarray:
  """Of `vit_jax.load`, at the highest precision."""
  model = vit_jax.load(file, **options)
  with jax.default_matmul_precision('highest'):
    return np.asarray(model(images))


def assert_same(first: pathlib.Path, second: pathlib.Path) -> None:
  """The same names, and for each the same shape and bits."""
  one, other = tensors(first), tensors(second)
  assert one.keys() == other.keys()
  for name, array in one.items():
    assert array.shape == other[name].shape, name
    assert array.dtype == other[name].dtype, name
    assert array.tobytes() == other[name].tobytes(), name
