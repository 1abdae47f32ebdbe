"""Distillation by DeiT's recipe: a student from scratch learns from the labels and from a teacher's decisions.

python -m vit_jax.main --config=configs/distill.py:s16,runs/teacher,imagenet2012 --workdir=runs/distilled
python -m vit_jax.main --config=configs/distill.py:ti16,/path/to/dinov2,folder:/images --workdir=runs/mine

The arguments are the student, the teacher and the data. A teacher is any checkpoint with a head for the classes of
the data: a workdir, an .npz, a Hugging Face folder; a convolutional one is the better teacher of a ViT (the paper,
table 2). It sees the student's crops and mixtures, resized to its own resolution. Another one beside it:
--config.objective.teachers=runs/one,runs/other. For function matching (arXiv 2106.05237: "a good teacher is patient
and consistent") the labels do not count, the targets are soft and the run is long:

  --config.objective.teacher_weight=1 --config.objective.teacher_targets=soft --config.objective.temperature=2 \\
  --config.total='1200 epochs'

DeiT's distillation token, a second head for the teacher alone: --config.model.distillation_token=True.

Numbers: arXiv 2012.12877, table 9, and hard distillation with equal weights (equation 3). Without erasing, whose noise
a teacher has never seen.

Target: v3-8
"""

from vit_jax import config as c
from vit_jax import recipes
from vit_jax.foundation.errors import UserError


def get_config(student_teacher_data: str = 's16,runs/teacher,imagenet2012'):
  words = student_teacher_data.split(',', 2)
  if len(words) < 3:
    raise UserError(
      f'configs/distill.py:{student_teacher_data} has {len(words)} of three arguments; give student, teacher and '
      f'data, as in s16,runs/teacher,imagenet2012.'
    )
  student, teacher, data = words
  source = recipes.source_of(data)
  split = recipes.held_out(source)
  return c.to_config_dict(
    c.Config(
      total='300 epochs',
      batch_size=1024,
      model=c.ViTConfig(variant=recipes.variant_of(student), stochastic_depth=0.1, dtype='bfloat16'),
      data=c.DataConfig(
        source=source,
        crop='inception',
        area=(0.08, 1.0),
        augment='randaugment(2,9)',
        mixup=0.8,
        cutmix=1.0,
        repeats=2,  # DeiT's 3 do not divide a batch of 1,024
        prefetch=4,
      ),
      evaluators={
        'val': c.ClassificationEvaluatorConfig(split=split, crop='central', resize=256, every='5%')
      },
      objective=c.DistillationObjective(
        teachers=teacher,
        teacher_weight=0.5,
        teacher_targets='hard',
        label_smoothing=0.1,
        teacher_dtype='bfloat16',
      ),
      optimizer=c.OptimizerConfig(weight_decay=0.05),
      schedule=c.ScheduleConfig(learning_rate=1e-3, warmup='5 epochs', decay='cosine', end_value=1e-5),
      checkpoint=c.CheckpointConfig(every='2%'),
    )
  )
