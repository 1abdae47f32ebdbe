"""The description of the endpoints in OpenAPI 3.1."""

from typing import Any

from vit_jax.serve.photos import Limits

Json = dict[str, Any]


def document(name: str, limits: Limits) -> Json:
  """What /openapi.json answers, of the service of a model."""
  errors = {
    '400': 'No photo, one that cannot be decoded, or something else that this model does not give.',
    '408': f'The request has not arrived within {limits.seconds:g} seconds.',
    '413': f'More than {limits.bytes:,} bytes, or a photo of more than {limits.pixels:,} pixels.',
    '415': 'Neither a form nor JSON.',
    '429': 'Too many photos wait; Retry-After says how many seconds to wait.',
    '503': 'The model is being compiled.',
  }
  said = {'type': 'object', 'properties': {'error': {'type': 'string'}}, 'required': ['error']}
  number, text = {'type': 'number'}, {'type': 'string'}
  prediction = _object(
    {'class': {'type': 'integer'}, 'name': {'type': ['string', 'null']}, 'probability': number}
  )
  top = {
    'name': 'top',
    'in': 'query',
    'description': 'Classes of each photo.',
    'schema': {'type': 'integer', 'minimum': 1, 'default': 5},
  }
  answers = {code: _answer(text, 'application/json', said) for code, text in errors.items()}

  def post(summary: str, kind: str, schema: Json, *parameters: Json) -> Json:
    content = {'content': _PHOTOS, 'required': True}
    responses = {'200': _answer('The answer.', kind, schema), **answers}
    return {
      'post': {
        'summary': summary,
        'parameters': list(parameters),
        'requestBody': content,
        'responses': responses,
      }
    }

  def get(summary: str, kind: str, schema: Json, **others: Json) -> Json:
    return {'get': {'summary': summary, 'responses': {'200': _answer('The answer.', kind, schema), **others}}}

  health = _object(
    {
      'status': text,
      'name': text,
      'model': text,
      'classes': {'type': 'integer'},
      'attention': {'type': 'boolean'},
    }
  )
  embedded = _list(_object({'image': text, 'embedding': _list(number)}))
  predicted = _list(_object({'image': text, 'predictions': _list(prediction)}))
  waiting = {'503': _answer('The model is being compiled, or the service stops.', 'application/json', health)}
  return {
    'openapi': '3.1.0',
    'info': {'title': name, 'version': '1', 'description': 'Photos to classes, embeddings and attention.'},
    'paths': {
      '/predict': post('The most probable classes of photos.', 'application/json', predicted, top),
      '/embed': post('Vectors of photos: what the head reads.', 'application/json', embedded),
      '/attention': post('A photo, bright where the model looks.', 'image/png', {}),
      '/health': get(
        'Whether the model is compiled and takes photos.', 'application/json', health, **waiting
      ),
      '/metrics': get('Counters for Prometheus.', 'text/plain', text),
      '/openapi.json': get('This description.', 'application/json', {'type': 'object'}),
      '/': get('A page to try the model.', 'text/html', text),
    },
  }


def _object(properties: Json) -> Json:
  return {'type': 'object', 'properties': properties, 'required': list(properties)}


def _list(items: Json) -> Json:
  return {'type': 'array', 'items': items}


def _answer(description: str, kind: str, schema: Json) -> Json:
  return {'description': description, 'content': {kind: {'schema': schema}}}


_PHOTOS = {
  'multipart/form-data': {
    'schema': {
      'type': 'object',
      'description': 'Files under any names.',
      'properties': {'photo': _list({'type': 'string', 'contentMediaType': 'application/octet-stream'})},
    }
  },
  'application/json': {'schema': _object({'images': _list({'type': 'string', 'contentEncoding': 'base64'})})},
}
