"""A ViT that learns from a ResNet, and one that does not (DeiT, arXiv 2012.12877, section 4), at equal epochs.

python -m vit_jax.study distillation --workdir=runs/distillation
python -m vit_jax.study distillation:digits --workdir=runs/distillation_digits

'alone' has no teacher; 'one_head' has the teacher's loss on the head of the labels; 'token' has DeiT's distillation
token, with a head of its own. 'soft': the divergence at a temperature of 3 instead of the teacher's decisions, with
weight 0.1 as DeiT has it. Published (table 3; DeiT-B on ImageNet at 224 pixels): no teacher 81.8 %, soft 81.8 %, hard
83.0 %, hard with the token 83.4 %.
CIFAR-10: a ResNet of two stages and ViTs with patches of 8 pixels, 10 epochs, 5 to 15 minutes of one core a run.
'digits': the model of configs/quickstart.py and a ResNet that sees the digits at 32 pixels, 20 epochs, a minute a run.
"""

from vit_jax.study.definition import Study, Variant, chosen

_EPOCHS = {'cifar10': 10, 'digits': 20}
_LENGTH = {
  data: {'total': f'{epochs} epochs', 'evaluators.test.every': '25%', 'checkpoint.every': '10%'}
  for data, epochs in _EPOCHS.items()
}
_TEACHER = {
  'cifar10': {'model.blocks': (1, 1)},
  'digits': {
    'model.blocks': (1, 1, 1, 1),
    'data.source': 'digits',
    'data.channels': 1,
    'data.flip': False,
    'data.resize': 32,
    'evaluators.test.crop': 'resize',
  },
}
_ALONE = {
  'cifar10': ('position:sincos2d,token,small', {'model.patch': 8}),
  'digits': ('quickstart', {'model.pool': 'token'}),
}
_HARD = {'objective.name': 'distillation', 'objective.teacher_targets': 'hard'}
_SOFT = {'objective.name': 'distillation', 'objective.teacher_weight': 0.1, 'objective.temperature': 3.0}
_TOKEN = {'model.distillation_token': True}
# Name -> options beside those of 'alone', and what was published.
_STUDENTS = {
  'one_head_soft': (_SOFT, '81.8 %'),
  'one_head_hard': (_HARD, '83.0 %'),
  'token_soft': ({**_SOFT, **_TOKEN}, ''),
  'token_hard': ({**_HARD, **_TOKEN}, '83.4 %'),
}


def get_study(data: str = 'cifar10') -> Study:
  config, own = chosen(data, _ALONE)
  own = {**_LENGTH[data], **own}
  variants = {
    'teacher': Variant('resnet:resnet,small', {**_LENGTH[data], **_TEACHER[data]}),
    'alone': Variant(config, own, published='81.8 %'),
  }
  for name, (options, published) in _STUDENTS.items():
    variants[name] = Variant(config, {**own, **options}, teacher='teacher', published=published)
  return Study(f'A ViT with and without a ResNet as teacher, {data}, {_EPOCHS[data]} epochs', variants)
