"""The evaluators of a config: during training, and of a checkpoint with --mode=eval."""

import pathlib
from collections.abc import Callable

import jax

from vit_jax.checkpoint.manager import Manager
from vit_jax.config import Config
from vit_jax.data import sources
from vit_jax.data.pipeline import EvalPipeline
from vit_jax.errors import UserError
from vit_jax.evaluation import classification, report
from vit_jax.evaluation.features import Features, Spec
from vit_jax.evaluation.fewshot import FewShotEvaluator
from vit_jax.evaluation.real_labels import RealLabels
from vit_jax.parallel import mesh as mesh_lib
from vit_jax.training import console
from vit_jax.training.state import TrainState
from vit_jax.training.step import Program, make_train_step

Opened = EvalPipeline | FewShotEvaluator


def open_evaluators(
  config: Config, class_names: tuple[str, ...], mesh: jax.sharding.Mesh
) -> dict[str, Opened]:
  """The evaluators' data: for the model's head with the training split's classes; probes have their own."""
  kind, place, _ = sources.parse(config.data.source, config.data.split)
  training_spec = f'{kind}:{place}'  # without the split that it may name
  result = {}
  for name, evaluator in config.evaluators.items():
    spec = evaluator.source or training_spec
    if evaluator.type == 'fewshot':
      result[name] = FewShotEvaluator(name, evaluator, spec, config, mesh)
      continue
    source = sources.open_source(spec, evaluator.split, data=config.data, class_names=class_names)
    real = None
    if evaluator.real_labels:
      own = sources.open_source(spec, evaluator.split, data=config.data).class_names
      real = RealLabels(evaluator.real_labels, own, class_names)
    result[name] = EvalPipeline(
      source,
      config.data,
      evaluator,
      batch_size=evaluator.batch_size or config.batch_size,
      sharding=mesh_lib.batch_sharding(mesh),
      real_labels=real,
    )
  return result


def evaluate(
  program: Program,
  state: TrainState,
  evaluators: dict[str, Opened],
  tell: Callable[[str, classification.Examples], None] | None = None,
) -> dict[str, float]:
  """{'<evaluator>/<metric>': value}, and '<evaluator>_average/…' of the averaged parameters.

  Args:
    program: evaluates.
    state: has the parameters.
    evaluators: name -> its data.
    tell: is given what was said of each example, by '<evaluator>' or '<evaluator>_average'.
  """
  scores = {}
  # Probes of the same images share their features.
  own: dict[Spec, Features] = {}
  averaged: dict[Spec, Features] = {}
  for name, evaluator in evaluators.items():
    models = {name: state.params} | ({f'{name}_average': state.average} if state.average else {})
    if isinstance(evaluator, FewShotEvaluator):
      scores |= evaluator.metrics(program.features, models, {name: own, f'{name}_average': averaged})
      continue
    for prefix, examples in classification.collect(program.evaluate, models, evaluator).items():
      values = classification.metrics(examples)
      scores |= {f'{prefix}/{metric}': value for metric, value in values.items() if metric != 'count'}
      if tell is not None:
        tell(prefix, examples)
  return scores


def evaluate_run(config: Config, workdir: pathlib.Path) -> dict[str, float]:
  """Evaluates the newest sound checkpoint of `workdir`; writes to report/ there, and changes nothing else."""
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
  num_classes = config.head_size(len(class_names))
  program = make_train_step(config, mesh, num_classes=num_classes, examples=meta['examples'])
  items = {name: item for name, item in program.state.items().items() if name in ('params', 'average')}
  step, items, _ = manager.restore_newest(items)
  state = program.state._replace(params=items['params'], average=items.get('average', {}))

  def tell(name: str, examples: classification.Examples) -> None:
    if jax.process_index() == 0:
      report.save(workdir / 'report', name, examples, class_names)

  scores = evaluate(program, state, evaluators, tell)
  console.Console().evaluation(step, scores)
  return scores
