"""Distillation: its losses against NumPy and float64, what teachers see, and that nothing changes them."""

import dataclasses
import functools
import shutil

import chex
import jax
import numpy as np
import pytest
import run_steps
import teachers
import tiny
from scipy.special import expit, log_softmax, softmax, xlogy

import vit_jax
from vit_jax import config as c
from vit_jax.checkpoint.manager import Manager
from vit_jax.data.preprocess import Preprocess
from vit_jax.foundation import pytrees
from vit_jax.foundation.errors import UserError
from vit_jax.models.parts.positions import POSITIONS
from vit_jax.plan import text as plan_text
from vit_jax.plan.planner import make_plan
from vit_jax.plan.topology import Topology
from vit_jax.training import evaluate_checkpoint, loop, resume
from vit_jax.training.run import Dataset, Run

ROWS, CLASSES = 16, 12
DIGITS = tuple('0123456789')


class TwoHeads:
  """A model whose logits are given, of the head that labels train and of that which teachers train."""

  def __init__(self, *logits):
    self._logits = tuple(jax.numpy.asarray(each) for each in logits)

  def distillation_logits(self, images, *, keys):
    return self._logits


@pytest.mark.slow
@pytest.mark.parametrize('temperature', [1.0, 3.0])
@pytest.mark.parametrize('targets', ['soft', 'hard'])
@pytest.mark.parametrize('loss', ['softmax', 'sigmoid'])
def test_loss_equals_numpy_in_float64(loss, targets, temperature):
  """Of two heads and two teachers, mixed images, smoothed labels and a weight of 0.7, some logits being extreme."""
  rng = np.random.default_rng(0)
  student, distilled, *taught = (rng.normal(size=(ROWS, CLASSES)).astype(np.float32) * 4 for _ in range(4))
  taught[0][0, 0], student[1, 1], distilled[2, 2] = 40, -60, -60
  batch = {
    'image': np.zeros((ROWS, 1, 1, 1), np.float32),
    'label': rng.integers(0, CLASSES, ROWS).astype(np.int32),
    'label_b': rng.integers(0, CLASSES, ROWS).astype(np.int32),
    'lam': rng.uniform(0.5, 1, ROWS).astype(np.float32),
  }
  teaching = {
    'teachers': 'a,b',
    'teacher_weight': 0.7,
    'teacher_targets': targets,
    'temperature': temperature,
  }
  objective = c.DistillationObjective(loss=loss, label_smoothing=0.1, **teaching)
  annotated = objective.annotated(batch, [lambda _, each=each: each for each in taught])
  got, metrics = objective.loss_and_metrics(
    TwoHeads(student, distilled), annotated, tiny.keys(ROWS), c.DataConfig()
  )

  divided = temperature if targets == 'soft' else 1.0
  z, d = student.astype(np.float64), distilled.astype(np.float64)
  one, two = (each.astype(np.float64) / divided for each in taught)
  lam, eye = batch['lam'].astype(np.float64)[:, None], np.eye(CLASSES)
  labels = (lam * eye[batch['label']] + (1 - lam) * eye[batch['label_b']]) * 0.9 + 0.1 / CLASSES
  if loss == 'softmax':
    p, log_q = (softmax(one, 1) + softmax(two, 1)) / 2, log_softmax(d / divided, 1)
    of_labels = -(labels * log_softmax(z, 1)).sum(1)
    chosen = -log_q[np.arange(ROWS), p.argmax(1)]
    divergence = (xlogy(p, p) - p * log_q).sum(1)
  else:
    p = (expit(one) + expit(two)) / 2
    rest = (expit(-one) + expit(-two)) / 2
    scaled = d / divided
    of_labels = (np.logaddexp(0, z) - labels * z).sum(1)
    chosen = (np.logaddexp(0, d) - (p > 0.5) * d).sum(1)
    entropy = -xlogy(p, p) - xlogy(rest, rest)
    divergence = (np.logaddexp(0, scaled) - p * scaled - entropy).sum(1)
  of_teachers = temperature**2 * divergence if targets == 'soft' else chosen
  assert float(metrics['label_loss']) == pytest.approx(of_labels.mean(), rel=1e-6)
  assert float(metrics['teacher_loss']) == pytest.approx(of_teachers.mean(), rel=1e-6)
  assert float(got) == pytest.approx(0.3 * of_labels.mean() + 0.7 * of_teachers.mean(), rel=1e-6)
  assert float(metrics['teacher_agreement']) == (d.argmax(1) == p.argmax(1)).mean()


@pytest.mark.parametrize(
  ('loss', 'link'), [('softmax', functools.partial(softmax, axis=-1)), ('sigmoid', expit)]
)
def test_teachers_probabilities_are_averaged_and_not_their_logits(loss, link):
  taught = np.random.default_rng(0).normal(size=(3, ROWS, CLASSES)).astype(np.float32) * 4
  objective = c.DistillationObjective(loss=loss, teachers='a,b,c', temperature=2.0)
  annotated = objective.annotated({'image': None}, [lambda _, each=each: each for each in taught])
  np.testing.assert_allclose(annotated['teacher'], link(taught / 2.0).mean(axis=0), rtol=1e-5)


@pytest.fixture(scope='module')
def folder(tmp_path_factory):
  """Teachers of digits: 'vit', 'mixer' and 'resnet', which has images of 16 × 16 and another scale of pixels."""
  folder = tmp_path_factory.mktemp('teachers')
  teachers.write(folder / 'vit', class_names=DIGITS)
  teachers.write(folder / 'mixer', tiny.mixer(), preprocess=Preprocess((8, 8), 1, mean=(0.3,), std=(0.7,)))
  scaled = Preprocess((16, 16), 1, mean=(0.45,), std=(0.2,))
  teachers.write(folder / 'resnet', tiny.resnet(), image_size=(16, 16), preprocess=scaled)
  return folder


def config(*names, folder, **changes) -> c.Config:
  """A student of digits, everything random being on."""
  objective = c.DistillationObjective(teachers=','.join(str(folder / name) for name in names))
  base = c.Config(
    total='6 steps',
    batch_size=16,
    model=tiny.options(dropout=0.1, stochastic_depth=0.1),
    data=c.DataConfig(image_size=(8, 8), channels=1, crop='random', padding=1, mixup=0.5),
    objective=objective,
    optimizer=c.OptimizerConfig(name='sgd'),
    schedule=c.ScheduleConfig(learning_rate=0.1),
  )
  return dataclasses.replace(base, **changes)


def teaching(config: c.Config, **changes) -> c.Config:
  """A config with other options of its objective."""
  return dataclasses.replace(config, objective=dataclasses.replace(config.objective, **changes))


def opened(config, devices=None) -> Run:
  return Run(config, Dataset(160, DIGITS), devices)


def said_by_teacher(config, images):
  """(logits of the only teacher, what is said of it)."""
  run = opened(config)
  params, text = run.frozen.read(DIGITS)
  (predict,) = run.frozen.predictors(params)
  return jax.jit(predict)(images), text


@pytest.mark.nightly(but='vit')
@pytest.mark.slow
@pytest.mark.parametrize('name', ['vit', 'mixer', 'resnet'])
def test_teacher_gets_the_students_pixels_as_its_own_checkpoint_wants_them(folder, name):
  """Its logits are those of `vit_jax.load` with the checkpoint's preprocessing, from the same bytes."""
  pixels = np.random.default_rng(0).integers(0, 256, (16, 8, 8, 1), dtype=np.uint8)
  taught, _ = said_by_teacher(config(name, folder=folder), pixels.astype(np.float32) / 127.5 - 1)
  teacher = vit_jax.load(folder / name)
  np.testing.assert_allclose(taught, teacher(teacher.preprocess(pixels)), atol=2e-5)


@pytest.mark.nightly(but='learned2d|sincos2d-None|relative-None|rotary_mixed-size12')
@pytest.mark.slow
@pytest.mark.parametrize(
  ('position', 'size'),
  [*((name, (12, 12)) for name in POSITIONS.names()), ('sincos2d', None), ('relative', None)],
)
def test_a_teacher_may_know_of_positions_in_any_way(position, size, tmp_path):
  """Its logits are those of `vit_jax.load`, at its own image size and at another."""
  teachers.write(tmp_path / 'vit', tiny.options(position=position))
  images = np.asarray(tiny.images(16, (8, 8), 1))
  taught, _ = said_by_teacher(teaching(config('vit', folder=tmp_path), teacher_size=size), images)
  teacher = vit_jax.load(tmp_path / 'vit', image_size=size)
  resized = images if size is None else jax.image.resize(images, (16, *size, 1), 'bilinear')
  np.testing.assert_allclose(taught, teacher(np.asarray(resized)), atol=2e-5)


@pytest.mark.slow
def test_student_that_is_its_teacher_has_nothing_to_learn_from_it(folder):
  """Both see the same mirrored and mixed crops: the divergence is zero, and so is its gradient."""
  alike = config('vit', folder=folder, model=tiny.options())
  run = opened(teaching(alike, teacher_weight=1.0, temperature=2.0))
  frozen, _ = run.frozen.read(DIGITS)
  state = run.program.init(np.uint32(0))
  begun = jax.tree.map(lambda leaf, like: jax.device_put(leaf, like.sharding), frozen[0], state.params)
  _, metrics = run.program.step(
    state._replace(params=jax.tree.map(np.copy, begun)), run_steps.batch(run.program, 0), frozen
  )
  assert float(metrics['train/loss']) == pytest.approx(0, abs=1e-6)
  assert float(metrics['train/grad_norm']) == pytest.approx(0, abs=1e-5)
  assert float(metrics['train/teacher_agreement']) == 1


def trained(config, devices=None):
  """(parameters, the losses of four steps, the teachers' parameters before and after)."""
  run = opened(config, devices)
  frozen, _ = run.frozen.read(DIGITS)
  before = jax.tree.map(np.array, frozen)
  state, losses = run.program.init(np.uint32(0)), []
  for step in range(4):
    state, metrics = run.program.step(state, run_steps.batch(run.program, step), frozen)
    losses.append(float(metrics['train/loss']))
  return jax.tree.map(np.asarray, state.params), losses, before, frozen


@pytest.mark.nightly
def test_eight_devices_and_accumulation_give_what_one_device_does_and_keep_the_teachers(folder):
  """The student has a distillation token."""
  model = tiny.options(dropout=0.1, stochastic_depth=0.1, distillation_token=True)
  one = config('vit', 'mixer', folder=folder, mesh=c.MeshConfig(data=1), model=model)
  params, losses, before, after = trained(one, jax.devices()[:1])
  chex.assert_trees_all_equal(before, jax.tree.map(np.array, after))
  split = dataclasses.replace(one, mesh=c.MeshConfig(fsdp=4, min_shard_size=1), accumulation=2)
  others, other_losses, before, after = trained(split)
  chex.assert_trees_all_equal(before, jax.tree.map(np.array, after))
  assert not pytrees.flatten(after[0])['head/kernel'].sharding.is_fully_replicated  # by its own rules
  chex.assert_trees_all_close(others, params, atol=2e-5)
  np.testing.assert_allclose(other_losses, losses, atol=1e-5)


@pytest.mark.nightly
def test_labels_train_the_class_head_only_and_teachers_the_distillation_head_only(folder):
  for weight, still in ((0.0, 'distillation_head'), (1.0, 'head')):
    given = config('vit', folder=folder, model=tiny.options(distillation_token=True))
    run = opened(teaching(given, teacher_weight=weight))
    frozen, _ = run.frozen.read(DIGITS)
    state, _ = run.program.step(run.program.init(np.uint32(0)), run_steps.batch(run.program, 0), frozen)
    moved = {name for name in ('head', 'distillation_head') if np.asarray(state.params[name]['kernel']).any()}
    assert moved == {'head', 'distillation_head'} - {still}  # kernels begin at zero


@pytest.fixture(scope='module')
def taught(folder) -> c.Config:
  """A student of two teachers that is saved twice, with a line of its log for each step."""
  return config(
    *('vit', 'mixer'),
    folder=folder,
    evaluators={'test': c.ClassificationEvaluatorConfig(split='test', every='6 steps')},
    checkpoint=c.CheckpointConfig(every='3 steps', keep=3),
    log_every='1 steps',
    ema=0.9,
    tensorboard=c.TensorBoardConfig(pictures=False),
  )


@pytest.fixture(scope='module')
def student(taught, tmp_path_factory):
  """The workdir of six steps."""
  workdir = tmp_path_factory.mktemp('student') / 'run'
  loop.train(taught, workdir)
  return workdir


def restored(config, workdir):
  """(step, every array of the newest checkpoint by its path)."""
  manager = Manager(workdir / 'checkpoints', config.checkpoint, read_only=True)
  shapes = opened(config).program.state.items()
  step, items, _ = manager.restore_newest(lambda meta: shapes)
  return step, pytrees.flatten(jax.tree.map(np.asarray, items))


@pytest.mark.nightly
def test_resumed_distillation_ends_in_the_same_bits(taught, student, tmp_path, capsys):
  again = tmp_path / 'run'
  shutil.copytree(student, again)
  shutil.rmtree(again / 'checkpoints' / '6')
  loop.train(taught, again)
  said, lines = capsys.readouterr().out, run_steps.logged(again)
  assert (
    'Resuming from step 3' in said
    and f'Frozen parameters from {taught.objective.teachers.split(",")[1]}' in said
  )
  assert {'train/label_loss', 'train/teacher_loss', 'train/teacher_agreement'} <= lines[0].keys()
  assert lines == run_steps.logged(student) and len(lines) == 6
  step, arrays = restored(taught, again)
  assert step == 6
  chex.assert_trees_all_equal(arrays, restored(taught, student)[1])


@pytest.mark.slow
def test_a_student_goes_on_with_another_teacher_by_takeover_alone(tmp_path, caplog):
  """With another one at the same address, that is; a student that has ended has nothing to ask it."""
  teacher, workdir = tmp_path / 'vit', tmp_path / 'student'
  given = config(
    *('vit',),
    folder=tmp_path,
    total='2 steps',
    checkpoint=c.CheckpointConfig(every='1 steps', keep=2),
    tensorboard=c.TensorBoardConfig(pictures=False),
  )
  teachers.write(teacher)
  loop.train(given, workdir)
  shutil.rmtree(teacher)
  teachers.write(teacher, tiny.options(depth=1))
  loop.train(given, workdir)
  shutil.rmtree(workdir / 'checkpoints' / '2')
  with pytest.raises(
    UserError, match=f'^{teacher} has other parameters than .*; restore what .* by --takeover'
  ):
    loop.train(given, workdir)
  assert 'another teacher' not in caplog.text
  loop.train(given, workdir, takeover=True)
  assert f'{teacher} has other parameters than at the last checkpoint' in caplog.text
  resume.check_teachers({}, {str(teacher): 'of an older checkpoint'}, takeover=False)


@pytest.mark.nightly
@pytest.mark.slow
def test_student_is_evaluated_and_loaded_without_its_teacher(taught, student, tmp_path):
  """Whose parameters are in no checkpoint of the student."""
  workdir = tmp_path / 'run'
  shutil.copytree(student, workdir)
  scores = evaluate_checkpoint.evaluate_newest(teaching(taught, teachers=str(tmp_path / 'gone')), workdir)
  assert scores['test/accuracy'] == run_steps.logged(student)[-1]['test/accuracy']
  model = vit_jax.load(workdir)
  assert model.num_classes == 10 and model.link == 'softmax'
  stored = {path.parent.name for path in workdir.glob('checkpoints/6/*/_METADATA')}
  assert stored == {'params', 'opt_state', 'counters', 'ema'}


@pytest.mark.slow
def test_plan_has_the_teachers(taught):
  plan = make_plan(taught, Topology('cpu:1', tuple(jax.devices()[:1])), Dataset(160, DIGITS))
  assert "frozen models' parameters" in plan_text.plan_text(plan)
  frozen = jax.tree.leaves(opened(taught).frozen.shapes)
  assert plan.memory.frozen == sum(leaf.size * leaf.dtype.itemsize for leaf in frozen)


def refusal(config: c.Config) -> str:
  """The error of a run with these options."""
  with pytest.raises(UserError) as raised:
    opened(c.from_config_dict(c.as_json(config))).frozen.read(DIGITS)
  return str(raised.value)


@pytest.mark.slow
def test_teachers_that_cannot_teach_are_refused_with_the_remedy(folder, tmp_path):
  teachers.write(tmp_path / 'five', num_classes=5)
  teachers.write(tmp_path / 'colour', channels=3)
  teachers.write(tmp_path / 'sigmoid', link='sigmoid')
  teachers.write(tmp_path / 'letters', class_names=('9', *'bcdefghij'))
  for name, said in {
    'five': 'has logits of 5 classes and the run of 10; choose a teacher',
    'colour': 'set --config.data.channels=3.',
    'sigmoid': 'set --config.objective.loss=sigmoid.',
    'letters': 'does not have 9 of the 10 classes (0, 1, 2, …); choose a teacher',
  }.items():
    assert said in refusal(config(name, folder=tmp_path)), name
  assert "config.objective.teachers is ''; name the checkpoint of a teacher" in refusal(
    config(folder=tmp_path)
  )
  given = teaching(config('vit', folder=folder), teacher_size=(9, 9))
  assert refusal(given).startswith('config.objective.teacher_size (9, 9) does not divide into patches of 4')


@pytest.mark.slow
def test_a_temperature_of_decisions_is_refused_and_dropped_where_an_older_run_has_it():
  objective = c.DistillationObjective(teachers='one', teacher_targets='hard', temperature=3.0)
  said = r"^config\.objective\.temperature is 3, .*'hard' has none; leave it out"
  with pytest.raises(UserError, match=said):
    c.from_config_dict(c.to_config_dict(c.Config(objective=objective)))
  read = c.from_config_dict(c.as_json(c.Config(objective=objective))).objective
  assert read == dataclasses.replace(objective, temperature=1.0)


@pytest.mark.slow
def test_a_teacher_whose_classes_stand_in_another_order_teaches_by_name(tmp_path):
  classes = 12
  teachers.write(tmp_path / 'turned', num_classes=classes, class_names=(*DIGITS[::-1], '10', '11'))
  given = config('turned', folder=tmp_path)
  given = dataclasses.replace(given, data=dataclasses.replace(given.data, num_classes=classes))
  images = np.asarray(tiny.images(16, (8, 8), 1))
  taught, text = said_by_teacher(given, images)
  assert 'its outputs are matched with the classes of the data by name' in text
  theirs = np.asarray(vit_jax.load(tmp_path / 'turned')(images))
  order = [*range(9, -1, -1), *range(10, classes)]
  np.testing.assert_allclose(taught, theirs[:, order], atol=2e-5)


@pytest.mark.slow
def test_sigmoids_teach_sigmoids_and_other_names_of_classes_are_said(tmp_path):
  teachers.write(tmp_path / 'sigmoid', link='sigmoid', class_names=tuple('abcdefghij'))
  given = teaching(config('sigmoid', folder=tmp_path), loss='sigmoid')
  _, text = opened(given).frozen.read(DIGITS)
  assert 'its outputs are the classes of the data by number' in text
  words = tuple(f'word {name}' for name in DIGITS)
  with pytest.raises(UserError, match=r'has the classes a, b, c, …, and the data 10 others \(word 0'):
    opened(given).frozen.read(words)
  told = opened(teaching(given, teacher_classes='number'))
  assert 'by number, whatever their names' in told.frozen.read(words)[1]
