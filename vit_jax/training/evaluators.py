"""The evaluators of a config: during training, and of a checkpoint with --mode=eval."""

import pathlib

import jax

from vit_jax import config as config_lib
from vit_jax.checkpoint.manager import Manager
from vit_jax.data import sources
from vit_jax.data.pipeline import EvalPipeline
from vit_jax.errors import UserError
from vit_jax.evaluation import classification
from vit_jax.parallel import mesh as mesh_lib
from vit_jax.training import console
from vit_jax.training.state import TrainState
from vit_jax.training.step import Program, head_size, make_train_step


def open_evaluators(
  config: config_lib.Config, class_names: tuple[str, ...], mesh: jax.sharding.Mesh
) -> dict[str, EvalPipeline]:
  """The evaluators' data, with the training split's classes."""
  kind, place, _ = sources.parse(config.data.source, config.data.split)
  training_spec = f'{kind}:{place}'  # without the split that it may name
  result = {}
  for name, evaluator in config.evaluators.items():
    spec = evaluator.source or training_spec
    source = sources.open_source(spec, evaluator.split, data=config.data, class_names=class_names)
    result[name] = EvalPipeline(
      source,
      config.data,
      evaluator,
      batch_size=evaluator.batch_size or config.batch_size,
      sharding=mesh_lib.batch_sharding(mesh),
    )
  return result


def evaluate(program: Program, state: TrainState, evaluators: dict[str, EvalPipeline]) -> dict[str, float]:
  """{'<evaluator>/<metric>': value}, and '<evaluator>_average/…' of the averaged parameters."""
  scores = {}
  for name, batches in evaluators.items():
    models = {name: state.params} | ({f'{name}_average': state.average} if state.average else {})
    for prefix, values in classification.evaluate(program.evaluate, models, batches).items():
      scores |= {f'{prefix}/{metric}': value for metric, value in values.items() if metric != 'count'}
  return scores


def evaluate_run(config: config_lib.Config, workdir: pathlib.Path) -> dict[str, float]:
  """Evaluates the newest sound checkpoint of `workdir`, changing nothing there."""
  mesh = mesh_lib.make_mesh(config.mesh)
  manager = Manager(workdir / 'checkpoints', config.checkpoint, read_only=True)
  newest = manager.restore_newest({})
  if newest is None:
    raise UserError(f'There is no checkpoint in {workdir / "checkpoints"}; train first, or check --workdir.')
  meta = newest[2]
  class_names = tuple(meta['class_names'])
  evaluators = open_evaluators(config, class_names, mesh)
  if not evaluators:
    raise UserError('config.evaluators is empty; name at least one split to evaluate.')
  num_classes = head_size(config, class_names)
  program = make_train_step(config, mesh, num_classes=num_classes, examples=meta['examples'])
  items = {name: item for name, item in program.state.items().items() if name in ('params', 'average')}
  step, items, _ = manager.restore_newest(items)
  state = program.state._replace(params=items['params'], average=items.get('average', {}))
  scores = evaluate(program, state, evaluators)
  console.Console().evaluation(step, scores)
  return scores
