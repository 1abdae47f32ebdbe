"""Processes that have other options or see other data are refused, all of them, before anything is trained."""

import dataclasses

import pytest
from processes import finish, start

from vit_jax import config as c
from vit_jax.training.agreement import facts
from vit_jax.training.run import Dataset

CONFIG = c.Config(evaluators={'val': c.ClassificationEvaluatorConfig()})
DATASET = Dataset(16, ('a', 'b'))


def names_of_differing(config: c.Config, dataset: Dataset = DATASET, images: int = 4) -> list[str]:
  own, other = facts(CONFIG, DATASET, {'val': 4}), facts(config, dataset, {'val': images})
  return [one.name for one, two in zip(own, other, strict=True) if one.content != two.content]


def test_places_and_speed_may_differ_between_hosts():
  data = dataclasses.replace(CONFIG.data, threads=64, source='folder:/disk1/images')
  init = c.InitConfig(checkpoint='/disk1/b16')
  assert names_of_differing(dataclasses.replace(CONFIG, data=data, init=init)) == []


def test_what_is_trained_may_not_differ():
  faster = dataclasses.replace(CONFIG, schedule=c.ScheduleConfig(learning_rate=0.5))
  assert names_of_differing(faster) == ['config.schedule']
  assert names_of_differing(dataclasses.replace(CONFIG, model=c.MixerConfig())) == ['config.model']
  mixed = [
    dataclasses.replace(CONFIG, data=c.DataConfig(mixture=((f'folder:/disk{disk}', weight), ('digits', 1.0))))
    for disk, weight in ((1, 3.0), (2, 3.0), (1, 2.0))
  ]
  names = [names_of_differing(config) for config in mixed]
  assert names[0] == names[1] == ['the weights of config.data.mixture']
  of_first, of_other = (facts(config, DATASET, {}) for config in (mixed[0], mixed[2]))
  assert [
    one.name for one, two in zip(of_first, of_other, strict=True) if one.content != two.content
  ] == names[0]
  assert names_of_differing(CONFIG, Dataset(12, ('a', 'b'))) == ['the training data']
  assert names_of_differing(CONFIG, Dataset(16, ('b', 'a'))) == ['the training data']
  assert names_of_differing(CONFIG, images=3) == ['the data of the evaluators']


@pytest.mark.slow
def test_processes_that_see_other_data_all_end_with_a_sentence():
  script = """
    import jax
    import ml_dtypes
    import numpy as np
    from vit_jax import cli
    from vit_jax.foundation import errors
    from vit_jax.parallel import distributed, peers
    from vit_jax.parallel.agreement import Fact, check_arrays, check_facts

    def main():
      distributed.initialize()
      with peers.Peers(60):
        check_facts([Fact('config.seed', '0', 0)])
        arrays = {'a': np.eye(3).T[::2], 'b': np.ones((), ml_dtypes.bfloat16), 'c': np.zeros((0, 2))}
        own = dict(reversed(arrays.items())) if jax.process_index() else arrays
        check_arrays('the teacher', own)
        try:
          check_arrays('the teacher', own | {'a': own['a'] + jax.process_index()})
        except errors.UserError as error:
          print(error)
        images = 16 - 4 * (jax.process_index() == 1)
        check_facts([Fact('config.seed', '0', 0), Fact('the training data', f'{images} images', images)])

    cli.run(main, ['test'])
  """
  processes = start(script, 2)
  for number, output in enumerate(finish(processes)):
    assert processes[number].returncode == 2, output
    assert f'The processes differ in the teacher: process {number} has 3 arrays with the checksum ' in output
    said = output.strip().splitlines()[-1]
    assert said.startswith('The processes differ in the training data: process '), output
    assert f'process {number} has {16 - 4 * number} images' in said or 'failed' in output
