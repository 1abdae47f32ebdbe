"""The training steps of big_vision and vision_transformer beside ours, compiled for a TPU slice that need not be here.

  python benchmarks/peers_tpu.py --big_vision=CHECKOUT --vision_transformer=CHECKOUT --topologies=v3-128,v5e:8x8
  python benchmarks/peers_tpu.py --big_vision=CHECKOUT --variants=L/16 --contenders=ours,big_vision_fsdp --blocks=2

A checkout is a clone of google-research/big_vision or google-research/vision_transformer; nothing is fetched, and a
contender without its checkout is left out. Each program is compiled in a process of its own by this host's libtpu, and
timed by our plan's estimate (vit_jax/plan/timing.py): nothing is measured. A program of whole depth takes minutes.
With --blocks all models have so many blocks, for a rehearsal.

All train the same ViT on a batch of 4,096 images of 224 px, with Adam (bfloat16 first moments), clipping and the
sigmoid loss of JFT's 18,291 classes, or with --recipe=imagenet21k with dropout of 0.1, a tanh layer before the head
and 21,843 classes. Ours is the recipe of configs/ with nothing chosen by hand. Liberties taken with the peers:

- TensorFlow and what else only reads data, writes logs or restores checkpoints is stubbed.
- big_vision: `train.py`'s update step is a closure of its main function, so it is written here once more, without
  mixup, and with `jax.set_mesh` in place of `with mesh:`, whose constraints Flax 0.12.8 ignores. Its blocks are not
  scanned, which is faster. bfloat16 by its own option (`dtype_mm`).
- vision_transformer: its package, of the same name as ours, is imported as `peer_vit_jax`. What it gives to `pmap` runs
  under `shard_map`. As configured: fine-tuning by momentum, softmax loss, float32, dropout of 0.1.
"""

import argparse
import contextlib
import dataclasses
import functools
import importlib.abc
import importlib.machinery
import importlib.util
import json
import pathlib
import subprocess
import sys
import types
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

CONTENDERS = ('ours', 'big_vision_fsdp', 'big_vision_replicated', 'vision_transformer')
BATCH, PIXELS = 4096, 224
STUBS = (
  *('tensorflow', 'tensorflow.io', 'tensorflow.io.gfile', 'tensorflow_datasets', 'tensorflow_text'),
  *('tensorflow_probability', 'clu', 'clu.metric_writers', 'clu.periodic_actions', 'pandas'),
)


@dataclasses.dataclass(frozen=True)
class Recipe:
  """What all contenders train: `config` is the name in our configs, `pre_logits` the tanh layer before the head."""

  config: str
  classes: int
  images: int
  dropout: float
  pre_logits: bool


RECIPES = {
  'jft': Recipe('jft', 18_291, 303_000_000, 0.0, False),
  'imagenet21k': Recipe('imagenet21k', 21_843, 14_095_000, 0.1, True),
}


@dataclasses.dataclass(frozen=True)
class Row:
  """A contender's estimate: seconds of a step, of which it waits for others; GiB on a device, None if unknown."""

  contender: str
  variant: str
  topology: str
  step: float | None
  waiting: float | None
  gib: float
  compile_seconds: float


def lower_big_vision(checkout: str, variant: str, recipe: Recipe, blocks: int | None, devices, *, fsdp: bool):
  """big_vision's update step, without mixup; returns the lowered program."""
  sys.path.insert(0, checkout)
  import big_vision.optax as bv_optax
  import big_vision.sharding as bv_sharding
  import big_vision.utils as u
  import flax.linen as nn
  import jax
  import jax.numpy as jnp
  import ml_collections
  import optax
  from big_vision.models import vit
  from jax.sharding import NamedSharding, PartitionSpec

  config = ml_collections.ConfigDict(
    {
      'optax_name': 'scale_by_adam',
      'optax': {'mu_dtype': 'bfloat16'},
      'grad_clip_norm': 1.0,
      'lr': 1e-3,
      'wd': 1e-4,
      'schedule': {'warmup_steps': 10_000, 'decay_type': 'cosine'},
    }
  )
  options = {} if blocks is None else {'depth': blocks}
  options |= {'pool_type': 'tok', 'dtype_mm': 'bfloat16', 'dropout': recipe.dropout}
  model = vit.Model(recipe.classes, variant=variant, rep_size=recipe.pre_logits, **options)
  key = jax.eval_shape(lambda: jax.random.PRNGKey(0))
  shapes = jax.eval_shape(lambda key: model.init(key, jnp.zeros((1, PIXELS, PIXELS, 3)))['params'], key)
  timing = {'total_steps': 500_000, 'batch_size': BATCH, 'data_size': recipe.images}
  tx, _ = bv_optax.make(config, nn.unbox(shapes), sched_kw=timing)
  state = {'params': shapes, 'opt': jax.eval_shape(tx.init, shapes)}
  mesh = make_mesh(devices, 'data')
  replicated, rules = NamedSharding(mesh, PartitionSpec()), [('act_batch', 'data')]
  with nn.logical_axis_rules(rules):
    strategy = [('.*', 'fsdp(axis="data")' if fsdp else 'replicate')]
    shardings = bv_sharding.infer_sharding(state, strategy=strategy, mesh=mesh)

  @functools.partial(jax.jit, donate_argnums=(0,), out_shardings=(shardings, replicated))
  def update_fn(train_state, rng, batch):
    images, labels = batch['image'], batch['labels']
    step_count = bv_optax.get_count(train_state['opt'], jittable=True)
    rng = jax.random.fold_in(rng, step_count)
    rng, rng_model = jax.random.split(rng, 2)

    def loss_fn(params):
      logits, _ = model.apply({'params': params}, images, train=True, rngs={'dropout': rng_model})
      return u.sigmoid_xent(logits=logits, labels=labels)

    params, opt = train_state['params'], train_state['opt']
    loss, grads = jax.value_and_grad(loss_fn)(params)
    updates, opt = tx.update(grads, opt, params)
    params = optax.apply_updates(params, updates)
    measurements = {'training_loss': loss}
    unfrozen = bv_optax.replace_frozen(config.schedule, grads, 0.0)
    for name, tree in (('l2_grads', unfrozen), ('l2_params', params), ('l2_updates', updates)):
      measurements[name] = jnp.sqrt(sum(jnp.sum(leaf * leaf) for leaf in jax.tree.leaves(tree)))
    return {'params': params, 'opt': opt}, measurements

  batch = batch_shapes(recipe.classes, 'labels')
  batch = placed(batch, NamedSharding(mesh, PartitionSpec('data')))
  with jax.set_mesh(mesh), nn.logical_axis_rules(rules):
    return update_fn.lower(jax.tree.map(placed, state, shardings), placed(key, replicated), batch), mesh


def lower_vision_transformer(checkout: str, variant: str, recipe: Recipe, blocks: int | None, devices):
  """vision_transformer's update step as it is configured; returns the lowered program."""
  import jax
  import jax.numpy as jnp
  import optax
  from jax.sharding import NamedSharding
  from jax.sharding import PartitionSpec as P

  sys.meta_path.insert(0, RenamedPackage('vit_jax', 'peer_vit_jax', pathlib.Path(checkout)))
  for name in ('checkpoint', 'input_pipeline', 'models'):
    sys.modules[f'peer_vit_jax.{name}'] = mock.MagicMock()
  from peer_vit_jax import models_vit, train, utils
  from peer_vit_jax.configs import models as configs

  options = configs.MODEL_CONFIGS[f'ViT-{variant.replace("/", "_")}'].copy_and_resolve_references()
  options.unlock()
  del options['model_name']
  if blocks is not None:
    options.transformer.num_layers = blocks
  model = models_vit.VisionTransformer(num_classes=recipe.classes, **options)
  rate = utils.create_learning_rate_schedule(20_000, 0.03, 'cosine', 500)
  sgd = optax.sgd(learning_rate=rate, momentum=0.9, accumulator_dtype='bfloat16')
  tx = optax.chain(optax.clip_by_global_norm(1), sgd)
  with mock.patch.object(jax, 'pmap', lambda function, **_: function):
    update_fn = train.make_update_fn(apply_fn=model.apply, accum_steps=1, tx=tx)
  mesh = make_mesh(devices, 'batch')
  whole, split = (P(), P(), P('batch'), P()), (P(), P(), P(), P())
  step = jax.shard_map(update_fn, mesh=mesh, in_specs=whole, out_specs=split, check_vma=False)

  key = jax.eval_shape(lambda: jax.random.PRNGKey(0))
  images = jnp.ones((1, PIXELS, PIXELS, 3))
  params = jax.eval_shape(lambda: model.init(jax.random.PRNGKey(0), images, train=False))['params']
  state = placed((params, jax.eval_shape(tx.init, params)), NamedSharding(mesh, P()))
  batch = placed(batch_shapes(recipe.classes, 'label'), NamedSharding(mesh, P('batch')))
  return jax.jit(step, donate_argnums=(0, 1)).lower(
    *state, batch, placed(key, NamedSharding(mesh, P()))
  ), mesh


def lower_ours(variant: str, recipe: Recipe, blocks: int | None, devices):
  """Our step of a recipe in configs/, with what it leaves open chosen for the whole depth."""
  from vit_jax import config as c
  from vit_jax.training.run import Dataset, Run

  path = pathlib.Path(__file__).parents[1] / 'configs' / f'vit_{variant.lower().replace("/", "")}.py'
  spec = importlib.util.spec_from_file_location('recipe', path)
  assert spec and spec.loader, path
  module = importlib.util.module_from_spec(spec)
  spec.loader.exec_module(module)
  dataset = Dataset(recipe.images)
  config = Run(c.from_config_dict(module.get_config(recipe.config).to_dict()), dataset, devices).config
  if blocks is not None:
    config = dataclasses.replace(config, model=dataclasses.replace(config.model, depth=blocks))
  run = Run(config, dataset, devices)
  return run.program.step.lower(run.program.state, run.program.batch, run.frozen.shapes), run.mesh


class RenamedPackage(importlib.abc.MetaPathFinder):
  """Imports the package `old` of a folder as `new`, whatever its files call it."""

  def __init__(self, old: str, new: str, folder: pathlib.Path):
    self._old, self._new, self._folder = old, new, folder

  def find_spec(self, fullname: str, path: Any = None, target: types.ModuleType | None = None):
    if fullname.partition('.')[0] != self._new:
      return None
    place = self._folder / self._old / pathlib.Path(*fullname.split('.')[1:])
    if place.is_dir():
      spec = importlib.machinery.ModuleSpec(fullname, None, is_package=True)
      spec.submodule_search_locations = [str(place)]
      return spec
    loader = RenamingLoader(fullname, str(place.with_suffix('.py')))
    loader.names = self._old.encode(), self._new.encode()
    return importlib.util.spec_from_file_location(fullname, loader.path, loader=loader)


class RenamingLoader(importlib.machinery.SourceFileLoader):
  """Reads a source file with one name in place of another; without a kept bytecode."""

  names = b'', b''

  def get_data(self, path):
    return super().get_data(path).replace(*self.names)

  def set_data(self, path, data, *, _mode=0o666):
    """Keeps nothing: the checkout stays as it is."""

  def path_stats(self, path):
    raise OSError('bytecode that lies there is of the other name')


def make_mesh(devices, axis: str):
  """All devices along one axis, in the order that their torus suggests."""
  from jax.experimental import mesh_utils
  from jax.sharding import Mesh

  return Mesh(mesh_utils.create_device_mesh((len(devices),), devices=list(devices)), (axis,))


def placed(tree, sharding):
  """The shapes of a tree with a sharding."""
  import jax

  place = lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding)
  return jax.tree.map(place, tree)


def batch_shapes(classes: int, labels: str) -> dict[str, Any]:
  """A batch as the peers' pipelines make it."""
  import jax
  import jax.numpy as jnp

  images = jax.ShapeDtypeStruct((BATCH, PIXELS, PIXELS, 3), jnp.float32)
  return {'image': images, labels: jax.ShapeDtypeStruct((BATCH, classes), jnp.float32)}


def stub() -> None:
  """Puts stubs in place of what only reads data, logs and restores; Flax looks for TensorFlow before."""
  with contextlib.suppress(ImportError):
    import flax.training.checkpoints  # noqa: F401
  for name in STUBS:
    sys.modules.setdefault(name, mock.MagicMock())


def compile_one(args: argparse.Namespace) -> Row:
  """The work of a process: one contender on one topology."""
  from vit_jax.plan import topology

  contender, variant, name = args.contenders[0], args.variants[0], args.topologies[0]
  machine = topology.describe(name)
  given = variant, RECIPES[args.recipe], args.blocks, machine.devices
  if contender == 'ours':
    lowered, mesh = lower_ours(*given)
  else:
    stub()
    if contender == 'vision_transformer':
      lowered, mesh = lower_vision_transformer(args.vision_transformer, *given)
    else:
      fsdp = contender == 'big_vision_fsdp'
      lowered, mesh = lower_big_vision(args.big_vision, *given, fsdp=fsdp)
  step, waiting, gib, seconds = estimate(lowered.compile, list(mesh.devices.flat), machine.kind)
  return Row(contender, variant, name, step, waiting, gib, seconds)


def estimate(compile_program: Callable[[], Any], devices, kind: str):
  """Seconds of a step, seconds of it without work, GiB, seconds of compiling; the first two None if too large."""
  import time

  import jax

  from vit_jax.parallel import hardware
  from vit_jax.plan import hlo, planner, timing

  known = hardware.of(kind)
  assert known, kind
  begin = time.perf_counter()
  try:
    compiled = compile_program()
  except jax.errors.JaxRuntimeError as error:
    found = planner.needed_and_available(str(error))
    if found is None:
      raise
    return None, None, found[0] / 2**30, time.perf_counter() - begin
  seconds = time.perf_counter() - begin
  result = timing.estimate(hlo.parse(compiled.as_text()), devices, known)
  memory = compiled.memory_analysis()
  total = memory.argument_size_in_bytes + memory.output_size_in_bytes + memory.temp_size_in_bytes
  return result.seconds, result.exposed, (total - memory.alias_size_in_bytes) / 2**30, seconds


def rows(args: argparse.Namespace) -> Iterator[Row]:
  """One after the other, each from a process of its own."""
  folders = {'big_vision': args.big_vision, 'vision_transformer': args.vision_transformer}
  for variant in args.variants:
    for name in args.topologies:
      for contender in args.contenders:
        peer = next((peer for peer in folders if contender.startswith(peer)), None)
        if peer and not folders[peer]:
          print(f'{contender} is left out: --{peer} names no checkout.', file=sys.stderr)
          continue
        one = [f'--variants={variant}', f'--topologies={name}', f'--contenders={contender}', '--one']
        done = subprocess.run([sys.executable, *sys.argv, *one], stdout=subprocess.PIPE, text=True)
        if done.returncode:
          sys.exit(f'{contender} was not compiled; the error is above.')
        yield Row(**json.loads(done.stdout.splitlines()[-1]))


def checkout(package: str) -> Callable[[str], str]:
  """The type of a flag: a folder with that package."""

  def check(path: str) -> str:
    if not (pathlib.Path(path) / package).is_dir():
      raise argparse.ArgumentTypeError(
        f'{path} has no folder {package}; clone the repository and name the clone.'
      )
    return path

  return check


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  names = lambda text: text.split(',')
  parser.add_argument(
    '--big_vision', type=checkout('big_vision'), help='a clone of google-research/big_vision'
  )
  parser.add_argument('--vision_transformer', type=checkout('vit_jax'), help='one of vision_transformer')
  parser.add_argument('--variants', type=names, default=['L/16', 'H/14'])
  parser.add_argument('--topologies', type=names, default=['v3-128', 'v5e:8x8'])
  parser.add_argument('--contenders', type=names, default=list(CONTENDERS))
  parser.add_argument('--recipe', choices=RECIPES, default='jft')
  parser.add_argument('--blocks', type=int, help='of every model; by default as many as it has')
  parser.add_argument('--one', action='store_true', help=argparse.SUPPRESS)
  args = parser.parse_args()
  if args.one:
    print(json.dumps(dataclasses.asdict(compile_one(args))))
    return
  print(
    '| variant | slice | contender | step, ms | waiting, ms | GiB | compiled in |\n|---|---|---|---|---|---|---|'
  )
  for row in rows(args):
    step, waiting = (f'{1e3 * x:.1f}' if x is not None else 'too large' for x in (row.step, row.waiting))
    cells = (
      row.variant,
      row.topology,
      row.contender,
      step,
      waiting,
      f'{row.gib:.1f}',
      f'{row.compile_seconds:.0f} s',
    )
    print(f'| {" | ".join(cells)} |', flush=True)


if __name__ == '__main__':
  main()
