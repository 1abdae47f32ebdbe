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
