"""Checkpoints on the Hugging Face Hub. Cache, token, resume and work without a network are huggingface_hub's."""

import pathlib
from typing import Any

from vit_jax.foundation import hub
from vit_jax.foundation.errors import UserError
from vit_jax.foundation.hub import Address
from vit_jax.pretrained import foreign

_TEXTS = ('*.json', '*.txt', '*.model', '*.sha256', 'README.md')  # configs, tokenizers, checksums, the card
_TENSORS = ('model.safetensors', 'model-?????-of-?????.safetensors')
_READ = ('.safetensors', '.npz')
# Files of a model or an adapter, which others would take for a part of one that is pushed in its place.
_OF_A_MODEL = (
  *_TENSORS,
  '*.safetensors.sha256',
  'adapter_config.json',
  'adapter_model.safetensors',
  'config.json',
  'model.safetensors.index.json',
  'preprocessor_config.json',
  'processor_config.json',
  'vit_jax.json',
)


def local_copy(address: Address) -> pathlib.Path:
  """The local copy of a model's folder, or of the file that an address names with the texts beside it.

  A repository without model.safetensors stands for its one .safetensors or .npz file. Pickles are not downloaded.

  Raises:
    UserError: there is no such repository, revision or file, none that vit_jax reads, or not with this token; it is
      not in the cache and the Hub does not answer.
    OSError: the cache cannot be written.
  """
  file, place = None, address.file or ''
  if pathlib.PurePath(place).suffix:
    foreign.refuse(place)  # before it is downloaded
    file, place = place, place.rpartition('/')[0]
  below = f'{place.rstrip("/")}/' if place else ''
  patterns = [below + pattern for pattern in (_TEXTS if file else (*_TEXTS, *_TENSORS))]
  with hub.opened(address) as library:
    # What the usual folder consists of. Asked for by the same patterns, it is found without a network too.
    top = library.snapshot_download(
      address.repository,
      revision=address.revision,
      allow_patterns=[*patterns, file] if file else patterns,
      ignore_patterns=[f'{below}*/*'],
    )
    folder, commit = pathlib.Path(top, place), pathlib.Path(top).name
    if file is not None:
      if not pathlib.Path(top, file).is_file():
        raise UserError(f'{address.repository} has no file {file}; check the name.')
      return pathlib.Path(top, file)
    if any(next(folder.glob(pattern), None) for pattern in _TENSORS):
      return folder
    name = below + _only_file(library, address, commit, folder, below)
    path = pathlib.Path(library.hf_hub_download(address.repository, name, revision=commit))
  # A folder of OpenCLIP's calls its tensors otherwise.
  return folder if any(folder.glob('*config.json')) else path


def _only_file(library: Any, address: Address, commit: str, folder: pathlib.Path, below: str) -> str:
  """The name of the only file that vit_jax reads in a folder; UserError where there is none or several."""
  try:
    files = library.HfApi().model_info(address.repository, revision=commit).siblings
    paths = [file.rfilename.removeprefix(below) for file in files if file.rfilename.startswith(below)]
    names = sorted(path for path in paths if '/' not in path)
  except Exception:  # without a network it is what was downloaded before
    names = [path.name for path in folder.glob('*')]
    if not any(name.endswith(_READ) for name in names):
      raise
  found = [name for name in names if name.endswith(_READ)]
  if len(found) > 1:
    example = address._replace(file=below + found[0])
    raise UserError(
      f'{address} has {len(found)} checkpoints ({", ".join(found[:5])}); name one of them: {example}.'
    )
  if found:
    return found[0]
  remedy = '; check the name, or name the file: hf:org/name:file'
  if others := foreign.among(names):
    local = address.repository.rpartition('/')[2]
    remedy = (
      f', but {others[0]}, which is not downloaded; `hf download {address.repository} --local-dir {local}` '
    )
    remedy += f'does so, and loading {local} then says the line that converts it'
  raise UserError(f'{address} has no .safetensors or .npz file{remedy}.')


def upload(folder: pathlib.Path, address: Address, *, private: bool, message: str | None) -> str:
  """Uploads a folder's files to a repository and branch, which are made if they are not there; the commit's address.

  Raises UserError where that is not allowed, or the repository is public although it is to be private.
  """
  name, revision = address.repository, address.revision
  with hub.opened(address) as library:
    api = library.HfApi()
    api.create_repo(name, private=private or None, exist_ok=True)
    if private and not api.model_info(name).private:
      raise UserError(f'{name} is there already, and public; change that on its page of the Hub.')
    if revision:
      api.create_branch(name, branch=revision, exist_ok=True)
    commit = api.upload_folder(
      repo_id=name,
      folder_path=folder,
      revision=revision,
      commit_message=message or 'A model of vit_jax',
      delete_patterns=list(_OF_A_MODEL),  # but for those that are uploaded
    )
  return str(commit.commit_url)
