"""A hook of MkDocs that makes the pages which are no file of docs/: commands, options, API, notebooks, the root's.

The site's tree is docs/ with the root's pages beside it, so that links between the two lose their `../` or `docs/`.
"""

import base64
import html
import json
import os
import pathlib
import posixpath
import re
import subprocess
import sys
from collections.abc import Iterable, Iterator

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

ROOT = pathlib.Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from vit_jax.cli import COMMANDS  # noqa: E402
from vit_jax.options import documentation  # noqa: E402

OUTSIDE = ('CONTRIBUTING.md', 'CHANGELOG.md', 'SECURITY.md', 'benchmarks/RESULTS.md')
# Page of the API -> its title and the modules on it; a package stands for all of its modules.
API = {
  'index': ('Load a model', ['vit_jax.loading', 'vit_jax.loaded_model']),
  'config': ('Config', ['vit_jax.config']),
  **{
    name: (name.capitalize(), [f'vit_jax.{name}'])
    for name in (
      'models',
      'adapters',
      'objectives',
      'evaluation',
      'data',
      'training',
      'parallel',
      'checkpoint',
      'pretrained',
    )
  },
}
_LINK = re.compile(r'(!?\[([^\]]*)\])\(([^)\s#:]+)(#[^)\s]*)?\)')


def on_config(config: MkDocsConfig) -> MkDocsConfig:
  """Lists the generated pages in the navigation."""
  sections = {
    title: section for item in config.nav or [] if isinstance(item, dict) for title, section in item.items()
  }
  sections['Commands'] += [{f'vit_jax {name}': f'commands/{name}.md'} for name in COMMANDS]
  sections['API'][:] = [{title: f'api/{page}.md'} for page, (title, _) in API.items()]
  return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
  """Adds the pages, and the pictures that they show."""
  for path in OUTSIDE:
    files.append(File.generated(config, path, abs_src_path=str(ROOT / path)))
  for path in sorted((ROOT / 'benchmarks').glob('*.png')):
    files.append(File.generated(config, f'benchmarks/{path.name}', abs_src_path=str(path)))
  pages = {'options.md': options_page(), 'commands/index.md': commands_page()}
  pages |= {f'commands/{name}.md': command_page(name) for name in COMMANDS}
  pages |= {f'api/{page}.md': api_page(title, modules) for page, (title, modules) in API.items()}
  for path in sorted((ROOT / 'docs').glob('*.ipynb')):
    pages |= notebook_pages(path)
  for path, content in pages.items():
    files.append(File.generated(config, path, content=content))
  return files


def on_page_markdown(markdown: str, page, config: MkDocsConfig, files: Files) -> str:
  """Turns links to files of the repository into links to pages, or, of what is no page, to the project's host."""
  source = page.file.src_uri
  place = posixpath.dirname(
    source if source in OUTSIDE or source.startswith('benchmarks/') else f'docs/{source}'
  )

  def linked(match: re.Match) -> str:
    path = posixpath.normpath(posixpath.join(place, match[3]))
    target = re.sub(r'\.ipynb$', '.md', path.removeprefix('docs/'))
    if files.get_file_from_path(target):
      return f'{match[1]}({posixpath.relpath(target, posixpath.dirname(source) or ".")}{match[4] or ""})'
    if not (ROOT / path).exists():
      return match[0]  # MkDocs warns of it
    return f'{match[1]}({config.repo_url.rstrip("/")}/blob/main/{path})' if config.repo_url else match[2]

  return _LINK.sub(linked, markdown)


def options_page() -> str:
  """Every option of a config."""
  sections: dict[str, list[documentation.OptionDoc]] = {}
  for option in documentation.documented():
    section = option.name.partition('.')[0] if '.' in option.name else 'The run'
    sections.setdefault(section, []).append(option)
  lines = [
    '# Options',
    'Any of them is set behind a config, such as `--config=quickstart --config.model.width=128`; the defaults '
    'below are those that a config file replaces. `vit_jax train --help` has the same list.',
  ]
  for title, found in sections.items():
    lines += [
      f'## {title}',
      definitions((f'--config.{each.name}={each.default}', each.text) for each in found),
    ]
  for choice, own in documentation.other_kinds():
    lines += [
      f'## With `--config.{choice}`',
      definitions((f'--config.{x.name}={x.default}', x.text) for x in own),
    ]
  return '\n\n'.join(lines)


def commands_page() -> str:
  """What there is."""
  rows = [f'| [`vit_jax {name}`]({name}.md) | {text} |' for name, (_, text) in COMMANDS.items()]
  return '\n'.join(['# Commands', '', '| command | what it does |', '|---|---|', *rows])


def command_page(name: str) -> str:
  """The help of a command: paragraphs and examples of its docstring, then its flags."""
  command = [sys.executable, '-c', 'from vit_jax.cli import main; main()', name, '--help']
  environment = dict(os.environ, PYTHONPATH=str(ROOT), JAX_PLATFORMS='cpu')
  text = subprocess.run(command, env=environment, check=True, capture_output=True, text=True).stdout
  text, _, options = text.partition('\n\nOptions of a config')
  doc, _, flags = text.partition('\n\nFlags:\n')
  lines = [f'# vit_jax {name}']
  for paragraph in doc.split('\n\n'):
    is_code = re.match(r'\s*(vit_jax|python|pip) ', paragraph) or paragraph.startswith('  ')
    lines.append(
      f'```sh\n{paragraph}\n```' if is_code else html.escape(paragraph, quote=False).replace('*', r'\*')
    )
  found = re.findall(r'^  (--\S.*)\n((?:      .*\n?)*)', flags, flags=re.MULTILINE)
  lines += ['## Flags', definitions((flag, ' '.join(described.split())) for flag, described in found)]
  if options:
    lines.append('And [every option of the config](../options.md), as `--config.section.option=value`.')
  return '\n\n'.join(lines)


def definitions(items: Iterable[tuple[str, str]]) -> str:
  """A list of terms and what they are, as HTML; `code` in the text is kept."""
  rows = []
  for term, text in items:
    described = re.sub(r'`([^`]+)`', r'<code>\1</code>', html.escape(text, quote=False))
    rows.append(f'<dt><code>{html.escape(term, quote=False)}</code></dt><dd>{described}</dd>')
  return '<dl class="options">' + ''.join(rows) + '</dl>'


def api_page(title: str, modules: Iterable[str]) -> str:
  """The docstrings of modules, or of all modules of packages."""
  names = [name for module in modules for name in _modules(module)]
  return '\n\n'.join([f'# {title}', *(f'::: {name}' for name in names)])


def _modules(name: str) -> Iterator[str]:
  """A module, and, of a package, those in it that have a docstring."""
  place = ROOT / name.replace('.', '/')
  if not place.is_dir():
    yield name
    return
  for file in sorted(place.rglob('*.py')):
    parts = file.relative_to(ROOT).with_suffix('').parts
    if file.read_text(encoding='utf-8').strip():
      yield '.'.join(parts[:-1] if parts[-1] == '__init__' else parts)


def notebook_pages(path: pathlib.Path) -> dict[str, str | bytes]:
  """A stored notebook as a page, and its pictures."""
  notebook = json.loads(path.read_text(encoding='utf-8'))
  pages: dict[str, str | bytes] = {}
  lines = [f'<a href="{path.name}" download>Download this notebook</a>']
  for cell in notebook['cells']:
    source = ''.join(cell['source'])
    lines.append(source if cell['cell_type'] == 'markdown' else f'```python\n{source}\n```')
    for number, output in enumerate(cell.get('outputs', ())):
      text = ''.join(output.get('text', ()))
      if picture := output.get('data', {}).get('image/jpeg'):
        name = f'{path.stem}/{cell["id"]}_{number}.jpg'
        pages[name] = base64.b64decode(picture)
        lines.append(f'![What the cell above shows]({name})')
      elif text:
        lines.append(f'```text\n{text.rstrip()}\n```')
  return pages | {f'{path.stem}.md': '\n\n'.join(lines)}
