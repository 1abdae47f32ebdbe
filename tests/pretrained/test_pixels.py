"""From photographs to features, as by transformers' or timm's processor and model, through every door of ours.

The processors are the real ones: the contents of preprocessor_config.json of google/vit-base-patch16-224 and
facebook/dinov2-small, and timm's pretrained_cfg of its DeiT. The models are small, and their parameters random.
"""

import json
import pathlib
import shutil
from typing import NamedTuple

import numpy as np
import pytest
from PIL import Image
from released_files import read
from transformers_peers import make_peer, torch, transformers

import vit_jax
from vit_jax import config as c
from vit_jax.data import on_device
from vit_jax.data.pipeline import EvalPipeline, TrainPipeline
from vit_jax.evaluation import features as features_lib
from vit_jax.parallel import mesh as mesh_lib
from vit_jax.pretrained import formats
from vit_jax.training import loop, preprocessing, resume
from vit_jax.training.initialization import initial_state, read_initial
from vit_jax.training.run import open_training
from vit_jax.training.step import model_inputs

pytestmark = pytest.mark.slow  # it compares with another framework


IMAGENET = {'image_mean': [0.485, 0.456, 0.406], 'image_std': [0.229, 0.224, 0.225]}
SQUARE = {'height': 224, 'width': 224}
# Peer -> its processor, and that one's preprocessor_config.json.
PROCESSORS = {
  'vit': (
    'ViTImageProcessor',
    {'image_mean': [0.5, 0.5, 0.5], 'image_std': [0.5, 0.5, 0.5], 'resample': 2, 'size': SQUARE},
  ),
  'dinov2': (
    'BitImageProcessor',
    {**IMAGENET, 'crop_size': SQUARE, 'do_center_crop': True, 'resample': 3, 'size': {'shortest_edge': 256}},
  ),
}
# timm's deit_base_patch16_224.
TIMM = {
  'crop_pct': 0.9,
  'interpolation': 'bicubic',
  'mean': IMAGENET['image_mean'],
  'std': IMAGENET['image_std'],
}


class Peer(NamedTuple):
  """A checkpoint, and what its own project makes of the photographs, sorted by name.

  Attributes:
    folder: the checkpoint.
    pixels: float32 (B, H, W, C).
    features: (B, D), what the head reads.
    logits: (B, K).
  """

  folder: pathlib.Path
  pixels: np.ndarray
  features: np.ndarray
  logits: np.ndarray


@pytest.fixture(scope='module')
def photos(tmp_path_factory):
  """Photographs of several sizes, in two splits of two classes."""
  folder, rng = tmp_path_factory.mktemp('photos'), np.random.default_rng(0)
  for number, size in enumerate(
    [(300, 260), (240, 420), (500, 300), (408, 408), (90, 70), (640, 480), (256, 300), (343, 300)]
  ):
    path = folder / ('train', 'val')[number // 4] / 'ab'[number % 2] / f'{number}.png'
    path.parent.mkdir(parents=True, exist_ok=True)
    coarse = Image.fromarray(rng.integers(0, 256, (9, 7, 3), np.uint8))
    coarse.resize(size, Image.Resampling.BICUBIC).save(path)
  return folder


def files_of(photos: pathlib.Path) -> list[pathlib.Path]:
  return sorted(photos.glob('*/*/*.png'))


def run_peer(model, pixels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
  """What the head of a model of transformers reads, and its logits."""
  read_by_head: list[np.ndarray] = []
  model.classifier.register_forward_pre_hook(lambda _, inputs: read_by_head.append(inputs[0].numpy()))
  with torch.no_grad():
    logits = model(torch.from_numpy(np.ascontiguousarray(pixels.transpose(0, 3, 1, 2)))).logits.numpy()
  features = read_by_head[0]
  return (features[:, 0] if features.ndim == 3 else features), logits


@pytest.fixture(scope='module', params=['vit', 'dinov2', 'timm'])
def peer(request, photos, tmp_path_factory) -> Peer:
  name = request.param
  folder = tmp_path_factory.mktemp(name)
  model = make_peer('dinov2' if name == 'dinov2' else 'vit', image_size=224, patch_size=32)
  images = [Image.open(path) for path in files_of(photos)]
  if name == 'timm':
    model.save_pretrained(folder / 'transformers')
    formats.FORMATS['timm']().write(read(folder / 'transformers'), folder / 'timm')
    folder = folder / 'timm'
    config = json.loads((folder / 'config.json').read_text())
    config['pretrained_cfg'] |= TIMM | {'crop_mode': 'center'}
    (folder / 'config.json').write_text(json.dumps(config))
    pixels = np.stack([by_timm(image) for image in images])
  else:
    model.save_pretrained(folder)
    cls, options = PROCESSORS[name]
    processor = getattr(transformers, cls + 'Pil')(**options)
    processor.save_pretrained(folder)
    values = {**options, 'image_processor_type': cls, 'do_normalize': True, 'do_resize': True}
    (folder / 'preprocessor_config.json').write_text(json.dumps(values))
    pixels = np.asarray(processor(images, return_tensors='np')['pixel_values']).transpose(0, 2, 3, 1)
  features, logits = run_peer(model, pixels)
  return Peer(folder, pixels, features, logits)


def by_timm(image: Image.Image) -> np.ndarray:
  """timm's evaluation, written out: the shorter side to 224 / 0.9 pixels, the middle, mean and std."""
  image = image.resize([248 * side // min(image.size) for side in image.size], Image.Resampling.BICUBIC)
  left, top = (round((side - 224) / 2) for side in image.size)  # half a pixel to the even one
  pixels = np.asarray(image.crop((left, top, left + 224, top + 224)), np.float32) / 255
  return (pixels - np.asarray(TIMM['mean'], np.float32)) / np.asarray(TIMM['std'], np.float32)


def config_of(peer: Peer, photos: pathlib.Path, **data) -> c.Config:
  """A fine-tuning run that says nothing of pixels."""
  options = {'shots': (1,), 'validation': 1, 'seeds': 1}
  return c.Config(
    total='1 steps',
    batch_size=8,
    model=formats.architecture(peer.folder).model.for_classification(),
    init=c.InitConfig(checkpoint=str(peer.folder)),
    data=c.DataConfig(source=f'folder:{photos}', image_size=(224, 224), **data),
    evaluators={
      'val': c.ClassificationEvaluatorConfig(split='val'),
      'probe': c.FewShotEvaluatorConfig(split='val', **options),
    },
  )


def assert_same(ours, theirs) -> None:
  np.testing.assert_allclose(ours, theirs, atol=1e-4, rtol=0)


def test_load_computes_what_the_peer_computes(peer, photos):
  model = vit_jax.load(peer.folder)
  images = model.preprocess([Image.open(path) for path in files_of(photos)])
  assert_same(images, peer.pixels)
  assert_same(model.embeddings(images), peer.features)
  assert_same(model(images), peer.logits)


@pytest.mark.nightly
@pytest.mark.parametrize('peer', ['dinov2'], indirect=True)
def test_a_run_keeps_the_pixels_of_its_checkpoint_without_it(peer, photos, tmp_path):
  folder = shutil.copytree(peer.folder, tmp_path / 'copy')
  begun = config_of(peer._replace(folder=folder), photos, crop='central', resize=256, flip=False)
  loop.train(begun, tmp_path / 'run')
  shutil.rmtree(folder)
  again = preprocessing.resolved(begun, tmp_path / 'run')
  assert again == resume.read_config(tmp_path / 'run')
  assert again.data.mean == tuple(IMAGENET['image_mean'])
  assert vit_jax.load(tmp_path / 'run').preprocess == vit_jax.load(peer.folder).preprocess
  # An un-augmented training batch has the same pixels too.
  run, source = open_training(again)
  pipeline = TrainPipeline(
    source, again.data, batch_size=8, seed=0, sharding=mesh_lib.batch_sharding(run.mesh)
  )
  names = [source[number].name for number in pipeline.indices(0)]
  wanted = [next(i for i, path in enumerate(files_of(photos)) if path.name in name) for name in names]
  assert_same(model_inputs(again, pipeline.batch(0), 0)['image'], peer.pixels[wanted])


def test_evaluation_and_probe_of_a_fine_tuning_see_what_the_peer_sees(peer, photos):
  config = preprocessing.resolved(config_of(peer, photos))
  run, _ = open_training(config)
  evaluators = run.open_evaluators()
  state = initial_state(run.program, 0, read_initial(config, run.architecture, run.dataset.class_names)[0])
  step = features_lib.make_step(run.program.graphdef, config.data, run.mesh)
  for name, first in (('val', 4), ('probe', 0)):
    options = config.evaluators[name]
    source = vit_jax.data.sources.open_source(
      config.data.source, ('train', 'val')[first // 4], data=config.data
    )
    batches = EvalPipeline(
      source,
      config.data,
      crop=options.crop,
      resize=options.resize,
      batch_size=8,
      sharding=mesh_lib.batch_sharding(run.mesh),
    )
    batch = next(iter(batches))
    assert batch['image'].dtype == np.uint8
    order = [int(pathlib.Path(source[i].name).stem) for i in range(4)]
    wanted = [files_of(photos).index(next(photos.glob(f'*/*/{number}.png'))) for number in order]
    assert_same(on_device.prepare(batch['image'], config.data)[:4], peer.pixels[wanted])
    found = features_lib.extract(step, state.params, batches, layer=None, pool=None)
    assert_same(found.values, peer.features[wanted])
  cache = {}
  evaluators['probe'].scores(state.params, cache)
  probed = np.concatenate([features.values for features in cache.values()])
  assert len(probed) == 8
  distances = np.abs(probed[:, None] - peer.features).max(axis=-1)
  assert sorted(distances.argmin(axis=1)) == list(range(8)) and distances.min(axis=1).max() < 1e-4
