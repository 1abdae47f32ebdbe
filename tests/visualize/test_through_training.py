"""An image through the kept checkpoints of a run."""

import dataclasses
import pathlib

import fork_server
import jax
import numpy as np
import pytest
import teachers
from PIL import Image

from vit_jax.foundation.errors import UserError
from vit_jax.loading import load
from vit_jax.pretrained import formats
from vit_jax.pretrained.base import FORMATS
from vit_jax.visualize import through_training
from vit_jax.visualize.observations import Observer


@pytest.fixture(scope='module')
def run(tmp_path_factory) -> pathlib.Path:
  """A run with three checkpoints, of parameters that grow, and an image beside it."""
  folder = tmp_path_factory.mktemp('place')
  begun = formats.read(teachers.write(folder / 'begun'))
  (folder / 'run/checkpoints').mkdir(parents=True)
  for step in (2, 4, 6):
    params = jax.tree.map(lambda leaf, step=step: step * leaf, begun.params)
    FORMATS['run']().write(dataclasses.replace(begun, params=params), folder / f'{step}')
    (folder / f'{step}/checkpoints/0').rename(folder / f'run/checkpoints/{step}')
  pixels = np.random.default_rng(0).integers(0, 256, (16, 16), dtype=np.uint8)
  Image.fromarray(pixels).save(folder / 'photo.png')
  return folder / 'run'


@pytest.mark.nightly
@pytest.mark.slow
def test_command_draws_a_strip_and_an_animation_with_a_frame_for_each_step(run):
  done = fork_server.run(
    'vit_jax.visualize', '--checkpoint=run', '--out=seen', '--steps=all', 'photo.png', cwd=run.parent
  )
  assert done.returncode == 0, done.stderr
  seen = run.parent / 'seen'
  with Image.open(seen / 'image_1_steps.gif') as animation:
    assert animation.n_frames == 3
    frames = []
    for number in range(3):
      animation.seek(number)
      frames.append(np.asarray(animation.convert('RGB')))
  assert not np.array_equal(frames[0], frames[2])  # of other parameters
  with Image.open(seen / 'image_1_steps.png') as strip:
    assert strip.width > 300
  text = (seen / 'index.html').read_text()
  assert 'src="image_1_steps.gif"' in text and 'src="image_1_steps.png"' in text


@pytest.mark.slow
def test_moments_are_those_of_each_step_by_itself(run):
  with Image.open(run.parent / 'photo.png') as image:
    image.load()
  steps = through_training.chosen_steps(str(run), ['all'])
  assert steps == [2, 4, 6]
  (moments,) = through_training.watch(through_training.models(str(run), steps, None, None), [image])
  for moment in moments:
    alone = Observer(load(run / 'checkpoints' / str(moment.step))).look(image)
    np.testing.assert_array_equal(moment.seen.rollout, alone.rollout)
    assert moment.seen.predictions == alone.predictions
    # The same colours, but for the sign of each component.
    for ours, theirs in zip(moment.seen.layers, alone.layers, strict=True):
      for channel in range(3):
        same, turned = theirs[..., channel], 1 - theirs[..., channel]
        assert any(np.allclose(ours[..., channel], wanted, atol=1e-5) for wanted in (same, turned))


@pytest.mark.slow
def test_steps_that_are_not_kept_are_named(run, tmp_path):
  assert through_training.chosen_steps(str(run), ['6', '2']) == [2, 6]
  with pytest.raises(UserError, match=r'--steps has 3, and .* keeps 2, 4, 6; choose from these'):
    through_training.chosen_steps(str(run), ['2', '3'])
  with pytest.raises(UserError, match='has no checkpoints; give its workdir'):
    through_training.chosen_steps(str(tmp_path), ['all'])
