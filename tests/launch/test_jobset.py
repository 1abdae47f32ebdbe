"""The JobSet, read back from its YAML."""

import re
import sys

import pytest
import yaml
from fakes import AWKWARD, LAUNCH, Fakes, assert_refused, succeed

SCRIPT = [sys.executable, LAUNCH / 'gke_jobset.py']
NEEDED = ['--name=l16', '--image=img:1', '--accelerator=tpu-v6e-slice', '--topology=4x8']
STORED = ['--bucket=my-bucket', '--mount=/mnt/b', '--service_account=trainer']


@pytest.fixture
def fakes(tmp_path):
  result = Fakes(tmp_path / 'bin')
  result.add('kubectl')
  return result


def made(fakes, *flags: str, command: tuple = ('--config=c.py',)) -> dict:
  return yaml.safe_load(succeed(fakes.run(*SCRIPT, *NEEDED, *flags, '--dry-run', '--', *command)))


def job(jobset: dict) -> dict:
  (replicated,) = jobset['spec']['replicatedJobs']
  return replicated['template']['spec']


def as_kubernetes_reads(word: str) -> str:
  """k8s.io/kubernetes/third_party/forked/golang/expansion: $$ is $; $(NAME) is replaced if it is known."""
  result, rest = '', word
  while '$' in rest:
    before, _, rest = rest.partition('$')
    result += before
    if rest.startswith('$'):
      result, rest = result + '$', rest[1:]
    elif found := re.match(r'\(([^)]*)\)', rest):
      result, rest = result + f'<{found[1]} replaced>', rest[found.end() :]
    else:
      result += '$'
  return result + rest


def test_kubectl_is_given_the_jobset(fakes):
  succeed(fakes.run(*SCRIPT, *NEEDED, '--namespace=ml', '--', *AWKWARD))
  assert fakes.calls('kubectl') == [['apply', '--namespace=ml', '--filename=-']]
  assert yaml.safe_load(fakes.inputs('kubectl')[0]) == made(fakes, command=AWKWARD)
  fakes.add('kubectl', 'sys.exit(1)')
  assert fakes.run(*SCRIPT, *NEEDED, '--', '--config=c.py').returncode == 1


def test_every_field_of_one_slice(fakes):
  jobset = made(fakes, '--max_restarts=7', '--grace_seconds=60')
  assert (jobset['apiVersion'], jobset['kind']) == ('jobset.x-k8s.io/v1alpha2', 'JobSet')
  assert jobset['metadata'] == {
    'name': 'l16',
    'labels': {},
    'annotations': {'alpha.jobset.sigs.k8s.io/exclusive-topology': 'cloud.google.com/gke-nodepool'},
  }
  assert jobset['spec']['failurePolicy']['maxRestarts'] == 7
  assert jobset['spec']['replicatedJobs'][0]['replicas'] == 1
  spec = job(jobset)
  assert spec['parallelism'] == spec['completions'] == 8  # 32 chips, 4 a host
  assert (spec['completionMode'], spec['backoffLimit']) == ('Indexed', 0)
  pod = spec['template']['spec']
  assert pod['restartPolicy'] == 'Never'  # a pod failure policy needs it
  assert pod['terminationGracePeriodSeconds'] == 60
  assert pod['nodeSelector'] == {
    'cloud.google.com/gke-tpu-accelerator': 'tpu-v6e-slice',
    'cloud.google.com/gke-tpu-topology': '4x8',
  }
  assert 'hostNetwork' not in pod and 'volumes' not in pod and 'tolerations' not in pod
  (container,) = pod['containers']
  assert container == {
    'name': 'train',
    'image': 'img:1',
    'command': ['python', '-m', 'vit_jax.main', '--config=c.py'],
    'securityContext': {'privileged': True},
    'resources': {'limits': {'google.com/tpu': 4}},
  }


def test_slices_spot_queue_and_bucket(fakes):
  jobset = made(fakes, '--slices=3', '--spot', '--queue=q', '--chips_per_host=8', *STORED)
  assert jobset['metadata']['labels'] == {'kueue.x-k8s.io/queue-name': 'q'}
  assert jobset['spec']['replicatedJobs'][0]['replicas'] == 3
  spec = job(jobset)
  assert spec['parallelism'] == 4
  assert spec['template']['metadata']['annotations'] == {'gke-gcsfuse/volumes': 'true'}
  pod = spec['template']['spec']
  assert (pod['hostNetwork'], pod['dnsPolicy']) == (True, 'ClusterFirstWithHostNet')
  assert pod['serviceAccountName'] == 'trainer'
  assert pod['nodeSelector']['cloud.google.com/gke-spot'] == 'true'
  assert pod['tolerations'][0]['key'] == 'cloud.google.com/gke-spot'
  (volume,) = pod['volumes']
  assert volume['csi'] == {
    'driver': 'gcsfuse.csi.storage.gke.io',
    'volumeAttributes': {
      'bucketName': 'my-bucket',
      'mountOptions': 'implicit-dirs',
      'hostNetworkPodKSA': 'true',
    },
  }
  (container,) = pod['containers']
  assert container['volumeMounts'] == [{'name': volume['name'], 'mountPath': '/mnt/b'}]
  assert container['resources']['limits']['google.com/tpu'] == 8


def test_arguments_survive_yaml_and_kubernetes(fakes):
  pod = job(made(fakes, command=(*AWKWARD, 'line\nbreak', 'yes', '1e3')))['template']['spec']
  (container,) = pod['containers']
  read = [as_kubernetes_reads(word) for word in container['command']]
  # The first begins with --: flags of vit_jax.main.
  assert read == ['python', '-m', 'vit_jax.main', *AWKWARD, 'line\nbreak', 'yes', '1e3']


def outcome(jobset: dict, exit_code: int, disrupted: bool = False) -> str:
  """What the controllers of Job and JobSet do when a pod ends, by the rules of batch/v1 and of JobSet."""
  reason = 'BackoffLimitExceeded'
  for rule in job(jobset)['podFailurePolicy']['rules']:
    if 'onPodConditions' in rule:
      fits = disrupted and rule['onPodConditions'][0]['type'] == 'DisruptionTarget'
    else:
      codes = rule['onExitCodes']
      fits = exit_code != 0 and (exit_code in codes['values']) == (codes['operator'] == 'In')
    if fits:
      reason = 'PodFailurePolicy' if rule['action'] == 'FailJob' else reason
      break
  for rule in jobset['spec']['failurePolicy']['rules']:
    if reason in rule['onJobFailureReasons']:
      return rule['action']
  return 'RestartJobSet'


@pytest.mark.parametrize(
  'code, disrupted, expected',
  [
    (75, False, 'RestartJobSet'),
    (2, False, 'FailJobSet'),
    (137, False, 'FailJobSet'),  # out of memory
    (137, True, 'RestartJobSet'),  # preempted before its save was complete
  ],
)
def test_jobset_is_restarted_only_after_75_or_a_lost_machine(fakes, code, disrupted, expected):
  assert outcome(made(fakes), code, disrupted) == expected


@pytest.mark.parametrize(
  'flags, words',
  [
    (['--topology=4by8'], 'not of the form'),
    (['--chips_per_host=5'], 'does not divide'),
    (['--name=L16'], 'lower-case'),
    (['--name=' + 'a' * 46], 'at most 45'),
    (['--bucket=b'], 'belong together'),
  ],
)
def test_wrong_arguments_are_one_sentence(fakes, flags, words):
  assert_refused(fakes.run(*SCRIPT, *NEEDED, *flags, '--', '--config=c.py'), words)
  assert_refused(fakes.run(*SCRIPT, *NEEDED), 'Nothing to run')
  assert fakes.calls('kubectl') == []
