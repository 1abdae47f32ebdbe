"""A ViT that learns from a ResNet, and one that does not (DeiT, arXiv 2012.12877, section 4), at equal epochs.

python -m vit_jax.study distillation --workdir=runs/distillation

CIFAR-10, 20 epochs. 'alone' has no teacher; 'one_head' has the teacher's loss on the head of the labels; 'token' has
DeiT's distillation token, with a head of its own. 'soft': the divergence at a temperature of 3 instead of the
teacher's decisions, with weight 0.1 as DeiT has it. Published (table 3; DeiT-B on ImageNet at 224 pixels): no teacher
81.8 %, soft 81.8 %, hard 83.0 %, hard with the token 83.4 %. A small ResNet and ViTs with patches of 8
pixels: a run takes ten to thirty minutes of one core.
"""

from vit_jax.study.definition import Study, Variant

_VIT = 'position:sincos2d,token,small'
_LENGTH = {'total': '20 epochs', 'evaluators.test.every': '25%', 'checkpoint.every': '10%'}
_ALONE = {**_LENGTH, 'model.patch': 8}
_HARD = {**_ALONE, 'objective.name': 'distillation', 'objective.teacher_targets': 'hard'}
_SOFT = {
  **_ALONE,
  'objective.name': 'distillation',
  'objective.teacher_weight': 0.1,
  'objective.temperature': 3.0,
}
_TOKEN = {'model.distillation_token': True}


def get_study() -> Study:
  return Study(
    'A ViT with and without a ResNet as teacher, CIFAR-10, 20 epochs',
    {
      'teacher': Variant('resnet:resnet,small', {**_LENGTH, 'model.blocks': (1, 1, 1, 1)}),
      'alone': Variant(_VIT, _ALONE, published='81.8 %'),
      'one_head_soft': Variant(_VIT, _SOFT, teacher='teacher', published='81.8 %'),
      'one_head_hard': Variant(_VIT, _HARD, teacher='teacher', published='83.0 %'),
      'token_soft': Variant(_VIT, {**_SOFT, **_TOKEN}, teacher='teacher'),
      'token_hard': Variant(_VIT, {**_HARD, **_TOKEN}, teacher='teacher', published='83.4 %'),
    },
  )
