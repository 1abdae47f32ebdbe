"""Training runs as checkpoints: npz -> run -> npz bit for bit, and what a run tells of itself."""

import dataclasses
import shutil

import numpy as np
import pytest
from released_files import assert_same, path, read, tensors, write, write_run

import vit_jax
from vit_jax import config as c
from vit_jax.checkpoint.manager import Manager
from vit_jax.data.preprocess import Preprocess
from vit_jax.foundation import pytrees
from vit_jax.foundation.errors import UserError
from vit_jax.models.base import Architecture
from vit_jax.pretrained import formats
from vit_jax.pretrained.base import Pretrained

FIXTURES = ['b_vit_gap', 'd1_hybrid_1_1_w05']


@pytest.mark.slow
@pytest.mark.parametrize('name', FIXTURES)
def test_npz_run_npz_is_bit_exact(golden, tmp_path, name):
  write_run(read(path(golden, name)), tmp_path / 'run')
  back = read(tmp_path / 'run')
  write(back, tmp_path / 'back.npz')
  assert_same(path(golden, name), tmp_path / 'back.npz')
  assert read(tmp_path / 'run' / 'checkpoints' / '0').architecture == back.architecture


@pytest.mark.slow
def test_mixer_and_model_without_head_come_back(golden, tmp_path):
  write_run(read(path(golden, 'e_mixer', 'linen')), tmp_path / 'mixer')
  write(read(tmp_path / 'mixer'), tmp_path / 'back.npz')
  assert_same(path(golden, 'e_mixer', 'linen'), tmp_path / 'back.npz')
  source = tensors(path(golden, 'b_vit_gap'))
  np.savez(tmp_path / 'x.npz', **{key: a for key, a in source.items() if not key.startswith('head/')})
  write_run(read(tmp_path / 'x.npz'), tmp_path / 'headless')
  assert read(tmp_path / 'headless').architecture.num_classes == 0


@pytest.mark.slow
def test_options_preprocessing_and_class_names_come_back(golden, tmp_path):
  preprocess = Preprocess(
    (32, 32), mean=(0.485, 0.456, 0.406), std=(0.2, 0.3, 0.4), shorter=36, antialias=True
  )
  released = read(path(golden, 'a_vit_token'), activation='gelu', norm_epsilon=1e-12)
  model = released.architecture.model.with_position_resize('bicubic')
  written = dataclasses.replace(
    released,
    architecture=dataclasses.replace(released.architecture, model=model),
    preprocess=preprocess,
    class_names=tuple('abcdefghij'),
  )
  write_run(written, tmp_path / 'run')
  model = vit_jax.load(tmp_path / 'run')
  assert model.class_names == tuple('abcdefghij')
  assert model.preprocess == preprocess
  back = read(tmp_path / 'run')
  assert back.architecture == written.architecture
  assert back.architecture.model.position_table('position_embedding').resize == 'bicubic'


@pytest.mark.slow
def test_trained_run_tells_its_preprocessing_and_falls_back_from_damage(tmp_path):
  """Its config says how images are prepared; sizes come from the variant."""
  config = c.Config(
    model=c.ViTConfig(variant='Ti/16', depth=1, width=12, heads=3, mlp_dim=8),
    data=c.DataConfig(image_size=(32, 48), mean=(0.0,), std=(1.0,), channels=1),
    evaluators={'val': c.ClassificationEvaluatorConfig(crop='central', resize=40)},
  )
  architecture = Architecture(config.model, (32, 48), 1, 2)
  older, newer = (
    save_run(tmp_path / 'run', c.as_json(config), architecture, 'params', step=step)['params']['head/bias']
    for step in (3, 7)
  )
  model = vit_jax.load(tmp_path / 'run')
  assert model.class_names == ('cat', 'dog')
  np.testing.assert_array_equal(model.module.head.bias[...], newer)
  np.testing.assert_array_equal(vit_jax.load(tmp_path / 'run/checkpoints/3').module.head.bias[...], older)
  images = model.preprocess([np.full((80, 160, 3), 255, np.uint8)])
  assert images.shape == (1, 32, 48, 1)
  np.testing.assert_allclose(images, 1, atol=1e-6)
  assert model.preprocess.shorter == 40
  with pytest.raises(UserError, match=r'There is no checkpoint .*/5; did you mean .*/7'):
    vit_jax.load(tmp_path / 'run/checkpoints/5')
  # Arrays of the newest step damaged, its meta sound: the one before is loaded, and nothing is moved.
  for file in (tmp_path / 'run/checkpoints/7/params').rglob('*'):
    if file.is_file() and file.parent.name == 'd':
      file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])
  np.testing.assert_array_equal(vit_jax.load(tmp_path / 'run').module.head.bias[...], older)
  assert (tmp_path / 'run/checkpoints/7').is_dir()
  for option in ({'pool': 'gap'}, {'activation': 'gelu'}):
    with pytest.raises(UserError, match=f'knows .*leave {next(iter(option))} out'):
      vit_jax.load(tmp_path / 'run', **option)


def test_directory_that_is_no_checkpoint_is_refused(golden, tmp_path):
  (tmp_path / 'empty').mkdir()
  with pytest.raises(UserError, match='is neither a training run'):
    vit_jax.load(tmp_path / 'empty')
  (tmp_path / 'begun/checkpoints').mkdir(parents=True)
  with pytest.raises(UserError, match='There is no checkpoint in'):
    vit_jax.load(tmp_path / 'begun')
  (tmp_path / 'empty/notes.txt').touch()
  with pytest.raises(UserError, match='is not empty'):
    write_run(read(path(golden, 'b_vit_gap')), tmp_path / 'empty')
  with pytest.raises(UserError, match="pool is 'none'"):
    write_run(read(path(golden, 'a4_vit_token_unpooled'), pool='none'), tmp_path / 'run')


SIZES = {'patch': 8, 'width': 32, 'mlp_dim': 64, 'depth': 2, 'heads': 4}


def save_run(workdir, config, architecture: Architecture, *items: str, meta=None, rename=str, step=3):
  """Saves a step of a run whose items are random parameters; the items by name, each by path.

  Args:
    workdir: where to.
    config: of the run, as JSON.
    architecture: whose parameters they are.
    items: names of the trees that a step holds.
    meta: what else is known of the step.
    rename: our path of a parameter -> that in the checkpoint.
    step: number of the step.
  """
  rng = np.random.default_rng(step)
  saved = {
    item: {
      path: rng.standard_normal(leaf.shape).astype(np.float32) for path, leaf in architecture.shapes().items()
    }
    for item in items
  }
  trees = {
    item: pytrees.unflatten({rename(path): array for path, array in params.items()})
    for item, params in saved.items()
  }
  meta = {'config': config, 'class_names': ['cat', 'dog'], 'examples': 9, **(meta or {})}
  with Manager(workdir / 'checkpoints', c.CheckpointConfig()) as manager:
    manager.save(step, trees, meta)
  return saved


def assert_params(pretrained: Pretrained, expected: dict[str, np.ndarray]) -> None:
  found = pytrees.flatten(pretrained.params)
  assert found.keys() == expected.keys()
  for name, array in expected.items():
    np.testing.assert_array_equal(found[name], array, err_msg=name, strict=True)


@pytest.mark.nightly(but='val_ema/')
@pytest.mark.slow
@pytest.mark.parametrize(
  ('best', 'usual_item'),
  [(None, 'params'), ('val_ema/accuracy', 'ema'), ('val_emails/accuracy', 'params')],  # an evaluator's name
)
def test_ema_is_read_where_it_is_asked_for_or_chose_the_best_checkpoint(tmp_path, best, usual_item):
  config = c.Config(
    model=c.ViTConfig('custom', **SIZES),
    data=c.DataConfig(image_size=(16, 16)),
    evaluators={name: c.ClassificationEvaluatorConfig() for name in ('val', 'val_emails')},
    checkpoint=c.CheckpointConfig(best=best),
    ema=0.9,
  )
  architecture = Architecture(config.model, (16, 16), 3, 2)
  saved = save_run(tmp_path / 'run', c.as_json(config), architecture, 'params', 'ema')
  usual = formats.read(tmp_path / 'run')
  assert_params(usual, saved[usual_item])
  (note,) = usual.notes
  other = 'raw' if usual_item == 'ema' else 'ema'
  assert f"weights='{other}' (--weights={other})" in note
  assert ('checkpoint.best of the run (val_ema/accuracy)' in note) == (usual_item == 'ema')
  raw, ema = (formats.read(tmp_path / 'run', weights=weights) for weights in ('raw', 'ema'))
  assert_params(raw, saved['params'])
  assert_params(ema, saved['ema'])
  assert raw.notes == ema.notes == () and raw.architecture == ema.architecture == usual.architecture
  # EMA -> npz -> load, bit for bit.
  write(ema, tmp_path / 'ema.npz')
  assert_params(read(tmp_path / 'ema.npz'), saved['ema'])
  images = np.random.default_rng(1).uniform(-1, 1, (2, 16, 16, 3)).astype(np.float32)
  of_npz = vit_jax.load(tmp_path / 'ema.npz')(images)
  np.testing.assert_array_equal(vit_jax.load(tmp_path / 'run', weights='ema')(images), of_npz)
  with pytest.raises(UserError, match=r"is a released .npz, which has one set of parameters; .*'ema'"):
    formats.read(tmp_path / 'ema.npz', weights='ema')


@pytest.mark.slow
def test_outputs_beyond_the_classes_of_the_data_are_called_by_their_number(tmp_path):
  config = c.Config(
    model=c.ViTConfig('custom', **SIZES), data=c.DataConfig(image_size=(16, 16), num_classes=4)
  )
  save_run(tmp_path / 'run', c.as_json(config), Architecture(config.model, (16, 16), 3, 4), 'params')
  model = vit_jax.load(tmp_path / 'run')
  assert model.class_names == ('cat', 'dog', '2', '3')
  model.module.head.bias[...] = model.module.head.bias[...].at[3].set(1e3)
  assert model.classify([np.zeros((16, 16, 3), np.uint8)]) == ['3']
  pretrained = formats.read(tmp_path / 'run')
  format_, _ = formats.written_by('hf', pretrained)
  format_.write(pretrained, tmp_path / 'hf')  # which has a name for each output
  assert vit_jax.load(tmp_path / 'hf').class_names == ('cat', 'dog', '2', '3')


def test_ema_of_a_run_without_one_is_refused(golden, tmp_path):
  write_run(read(path(golden, 'b_vit_gap')), tmp_path / 'run')
  with pytest.raises(UserError, match=r'has no EMA of its parameters \(its config.ema is 0\)'):
    formats.read(tmp_path / 'run', weights='ema')


def test_run_with_a_part_from_outside_says_what_to_import(golden, tmp_path, monkeypatch):
  write_run(read(path(golden, 'b_vit_gap')), tmp_path / 'run')
  as_stored = c.from_config_dict
  monkeypatch.setattr(
    c,
    'from_config_dict',
    lambda values: as_stored(values | {'model': values['model'] | {'name': 'conv_mixer'}}),
  )
  with pytest.raises(
    UserError,
    match=r"not in vit_jax: config\.model\.name is 'conv_mixer'; .* import its module before you load",
  ):
    read(tmp_path / 'run')


@pytest.mark.slow
def test_run_of_the_first_edition_is_read(tmp_path):
  """Its config was flat, the EMA was called average, and the layer below the head representation."""
  model = c.ViTConfig('custom', **SIZES, pre_logits_size=24)
  older = {
    'model': {
      'variant': 'custom',
      **SIZES,
      'tokens_mlp_dim': None,
      'resnet_blocks': None,
      'representation_size': 24,
      'pool': 'token',
    },
    'data': {'image_size': [16, 16], 'grow': []},
    'loss': {'name': 'sigmoid', 'label_smoothing': 0.0},
    'average': 0.9,
  }
  architecture = Architecture(model, (16, 16), 3, 2)
  saved = save_run(
    tmp_path,
    older,
    architecture,
    *('params', 'average'),
    meta={'position_resize': 'bicubic'},
    rename=lambda path: path.replace('pre_logits/', 'representation/'),
  )
  for weights, item in (('raw', 'params'), ('ema', 'average')):
    found = formats.read(tmp_path, weights=weights)
    assert_params(found, saved[item])
    model = dataclasses.replace(model, position_resize='bicubic')
    assert found.architecture == dataclasses.replace(architecture, model=model)


def test_architecture_is_read_without_the_arrays(golden, tmp_path):
  write_run(read(path(golden, 'c_vit_token_rep32')), tmp_path / 'run')
  wanted = read(tmp_path / 'run').architecture
  shutil.rmtree(tmp_path / 'run/checkpoints/0/params')
  assert formats.architecture(tmp_path / 'run') == wanted
