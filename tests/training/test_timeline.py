"""When what happens every so often happens."""

import pytest

from vit_jax.training.timeline import Timeline


@pytest.mark.parametrize(
  ('every', 'steps'),
  [
    ('1 epochs', [781, 1563, 2344, 3125, 3906, 4688, 5469]),  # of 781.25 steps
    ('2 epochs', [1563, 3125, 4688]),
    ('25%', [1367, 2735, 4102, 5469]),
    ('1000 steps', [1000, 2000, 3000, 4000, 5000]),
    ('100000 examples', [1563, 3125, 4688]),
  ],
)
def test_events_are_at_the_step_nearest_to_each_multiple(every, steps):
  """CIFAR-10 in batches of 64, so that the last of seven epochs ends with the run."""
  timeline = Timeline.of('7 epochs', batch_size=64, examples=50_000)
  assert timeline.total == 5469
  assert [step for step in range(1, timeline.total + 1) if timeline.occurs(every, step)] == steps


@pytest.mark.parametrize('every', ['1 steps', '1 examples', '0.1 epochs'])
def test_events_more_frequent_than_steps_are_at_every_step(every):
  timeline = Timeline.of('3 epochs', batch_size=4, examples=10)
  assert all(timeline.occurs(every, step) for step in range(1, timeline.total + 1))


def test_durations_that_meet_do_so_in_the_same_step():
  """5 epochs of 410 images in batches of 100 are 20.5 steps, and 15 are 61.5, which floats put on either side."""
  timeline = Timeline.of('20 epochs', batch_size=100, examples=410)
  for epoch in range(1, 21):
    step = (2 * epoch * 410 + 100) // 200  # half a step is one, in whole numbers
    assert timeline.steps(f'{epoch} epochs') == step == timeline.steps(f'{epoch * 410} examples')
    for every in (1, 5):
      assert timeline.occurs(f'{every} epochs', step) == (epoch % every == 0)
  tenths = Timeline.of('30 epochs', batch_size=96, examples=8144)
  saved = [step for step in range(1, tenths.total + 1) if tenths.occurs('1 epochs', step)]
  assert len(saved) == 30 and all(tenths.occurs('0.1 epochs', step) for step in saved)
  percent = Timeline.of('57 steps', batch_size=1, examples=1)
  assert percent.steps('50%') == 29 and percent.steps('1e2%') == 57
