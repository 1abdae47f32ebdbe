"""Few-shot probes of one checkpoint, in a workdir of their own."""

import pathlib
import time
from typing import cast

from vit_jax.config import Config
from vit_jax.evaluation.fewshot import FewShotEvaluator
from vit_jax.training import preprocessing, results
from vit_jax.training.initialization import initial_state, read_initial
from vit_jax.training.resume import claim
from vit_jax.training.run import Dataset, Run, evaluate

_NAMED_CLASSES = 5  # in a note


def probe(config: Config, workdir: pathlib.Path) -> results.Result:
  """Runs the config's evaluators, all of type 'fewshot', on its initial parameters; the result goes to `workdir`.

  Raises UserError for data or a checkpoint that is not there or does not fit, or where a run of another config is.
  """
  config = preprocessing.resolved(config, workdir)
  run = Run(config, Dataset(examples=1, num_classes=1))  # the head, which probes do not read, has one class
  with results.output_in_log(workdir):
    with claim(config, workdir, begun=False, takeover=False) as note:
      if note:
        print(note)
    evaluators = run.open_evaluators()
    begun_from = results.contents(config)
    arrays, text = read_initial(config, run.architecture, ())
    if text:
      print(text)
    state = initial_state(run.program, config.seed, arrays)
    begin = time.perf_counter()
    metrics = evaluate(state, evaluators)
    seconds = time.perf_counter() - begin
  probes = cast(list[FewShotEvaluator], list(evaluators.values()))
  images = max(evaluator.images for evaluator in probes)  # evaluators share the features
  result = results.of(metrics, float(images * run.architecture.forward_flops()), seconds)
  result = result._replace(begun_from=begun_from)
  if probes[0].too_few:
    result.notes.append(_too_few_text(probes[0].too_few))
  results.write(result, workdir)
  return result


def _too_few_text(too_few: dict[str, int]) -> str:
  """'2 classes have fewer images than …: cat (3), dog (4)'."""
  shown = [f'{name} ({count})' for name, count in list(too_few.items())[:_NAMED_CLASSES]]
  if len(too_few) > _NAMED_CLASSES:
    shown.append('…')
  return f'{len(too_few)} classes have fewer images than shots and validation take: {", ".join(shown)}'
