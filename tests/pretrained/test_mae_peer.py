"""The loss of masked autoencoding against transformers' ViTMAEForPreTraining, with its weights and the same noise."""

import dataclasses
import importlib

import jax
import numpy as np
import pytest
import tiny
from flax import nnx
from transformers_peers import load_whole, randomise, torch, transformers

from vit_jax import config as c
from vit_jax.pretrained import formats
from vit_jax.pretrained.base import FORMATS

SIZES = {
  **{'image_size': 16, 'patch_size': 4, 'hidden_size': 32, 'intermediate_size': 48, 'num_hidden_layers': 2},
  **{'num_attention_heads': 4, 'decoder_hidden_size': 24, 'decoder_intermediate_size': 96},
  **{'decoder_num_attention_heads': 3, 'decoder_num_hidden_layers': 3, 'norm_pix_loss': True},
}


@pytest.mark.slow
def test_the_loss_is_that_of_transformers(tmp_path):
  torch.manual_seed(0)
  peer = transformers.ViTMAEForPreTraining(transformers.ViTMAEConfig(**SIZES))
  modeling = importlib.import_module('transformers.models.vit_mae.modeling_vit_mae')
  randomise(peer, 0)
  with torch.no_grad():
    for table in (peer.vit.embeddings.position_embeddings, peer.decoder.decoder_pos_embed):
      sines = modeling.build_2d_sinusoidal_position_embedding(4, 4, table.shape[-1], cls_token=True)
      table.copy_(
        torch.cat(sines.chunk(2, dim=-1)[::-1], dim=-1)
      )  # columns first, as its checkpoints have them
  peer.save_pretrained(tmp_path)

  assert type(formats.read(str(tmp_path)).architecture.model) is c.ViTConfig
  read = formats.read(str(tmp_path), pretraining=True)
  model = read.architecture.model
  assert isinstance(model, c.MaeConfig) and model.position == 'sincos2d_mae'
  assert not any('decoder' in note for note in read.notes)
  images, keys = tiny.images(3, (16, 16)), tiny.keys()
  noise = [jax.random.uniform(jax.random.fold_in(key, model.num_layers + 1), (16,)) for key in keys]
  with torch.no_grad():
    expected = peer.eval()(
      torch.from_numpy(np.array(images).transpose(0, 3, 1, 2)), noise=torch.from_numpy(np.array(noise))
    ).loss
  network = nnx.merge(read.architecture.graph_and_shapes()[0], read.params)
  with jax.default_matmul_precision('highest'):
    loss, _ = c.MaeObjective().loss_and_metrics(network, {'image': images}, keys, c.DataConfig())
  np.testing.assert_allclose(loss, expected.item(), rtol=1e-6)
  table = peer.vit.embeddings.position_embeddings.detach().numpy()
  np.testing.assert_allclose(network.positions((16, 16)), table, atol=1e-6)

  learned = dataclasses.replace(
    read,
    architecture=dataclasses.replace(read.architecture, model=model.with_learned_positions()),
    params=read.params | {'position_embedding': table},
  )  # as a run's checkpoint is read
  FORMATS['mae']().write(learned, tmp_path / 'written')
  again = load_whole(transformers.ViTMAEForPreTraining, tmp_path / 'written')
  for (name, theirs), (_, ours) in zip(peer.named_parameters(), again.named_parameters(), strict=True):
    np.testing.assert_allclose(ours.detach(), theirs.detach(), atol=1e-6, err_msg=name)
