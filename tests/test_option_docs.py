"""The options that `--help` lists, with their documentation."""

from vit_jax import config as c
from vit_jax import option_docs, options
from vit_jax.evaluation.base import EVALUATORS
from vit_jax.models.base import MODELS
from vit_jax.objectives.base import OBJECTIVES

DEFAULT = c.Config()
REGISTRIES = {'model': MODELS, 'objective': OBJECTIVES, 'evaluators.NAME': EVALUATORS}


def kinds():
  """(section, kind, its options with their defaults), of those that come with vit_jax."""
  for section, registry in REGISTRIES.items():
    for kind in registry.names():
      if registry[kind].__module__.startswith('vit_jax.'):  # other tests register their own
        yield section, kind, registry[kind]()


def test_every_option_of_every_kind_has_a_text():
  docs = list(option_docs.documented(DEFAULT))
  for section, _, own in kinds():
    docs += option_docs.documented(own, f'{section}.')
  assert len(docs) > 150
  assert [doc.name for doc in docs if not doc.text] == []


def test_help_has_the_options_of_every_model_objective_and_evaluator():
  text = option_docs.help_text(DEFAULT)
  for section, kind, own in kinds():
    for name in options.as_dict(own):
      assert f'  --config.{section}.{name}=' in text or name == REGISTRIES[section].tag, (kind, name)


def test_options_of_another_kind_stand_behind_the_choice_of_it():
  text = option_docs.help_text(DEFAULT)
  _, _, mixer = text.partition("With --config.model.name='mixer' there are:\n")
  assert mixer.lstrip().startswith('--config.model.tokens_mlp_dim=None\n')
  assert text.count('--config.model.tokens_mlp_dim=') == 1
