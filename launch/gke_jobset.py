"""A run on TPU node pools of a GKE cluster with the JobSet controller.

python launch/gke_jobset.py --name=l16 --image=IMAGE --accelerator=tpu-v5-lite-podslice --topology=16x16 \\
  --service_account=trainer -- --config=… --workdir=gs://my-bucket/l16

Makes a JobSet and passes it to `kubectl apply`; --dry-run prints its YAML instead. What follows -- is a
command, or flags of vit_jax.main. The image must have vit_jax and its configs in its working directory. All
slices of the JobSet are started again after exit code 75 and after Kubernetes took a pod away (preemption,
maintenance); any other exit code ends it.
"""

import argparse
import math
import re
import subprocess
import sys
from typing import Any

import yaml

from vit_jax.foundation.errors import EXIT_RESTART, EXIT_USER_ERROR, UserError

_CONTAINER = 'train'


def jobset(args: argparse.Namespace, command: list[str]) -> dict[str, Any]:
  """The JobSet, with one Job for each slice and one pod for each of its hosts."""
  hosts = _hosts(args.topology, args.chips_per_host)
  labels = {'kueue.x-k8s.io/queue-name': args.queue} if args.queue else {}
  return {
    'apiVersion': 'jobset.x-k8s.io/v1alpha2',
    'kind': 'JobSet',
    'metadata': {
      'name': args.name,
      'labels': labels,
      # Puts each slice on a node pool of its own.
      'annotations': {'alpha.jobset.sigs.k8s.io/exclusive-topology': 'cloud.google.com/gke-nodepool'},
    },
    'spec': {
      'failurePolicy': {
        'maxRestarts': args.max_restarts,
        # For a Job that its own pod failure policy has ended; after any other end the whole set is restarted.
        'rules': [
          {'name': 'notRestartable', 'action': 'FailJobSet', 'onJobFailureReasons': ['PodFailurePolicy']}
        ],
      },
      'replicatedJobs': [
        {
          'name': 'slice',
          'replicas': args.slices,
          'template': {
            'spec': {
              'parallelism': hosts,
              'completions': hosts,
              'completionMode': 'Indexed',
              'backoffLimit': 0,
              'podFailurePolicy': {
                # The first rule that fits decides. A pod that is taken away may be killed in the end, with
                # any code.
                'rules': [
                  {'action': 'Count', 'onPodConditions': [{'type': 'DisruptionTarget', 'status': 'True'}]},
                  {
                    'action': 'FailJob',
                    'onExitCodes': {
                      'containerName': _CONTAINER,
                      'operator': 'NotIn',
                      'values': [EXIT_RESTART],
                    },
                  },
                ]
              },
              'template': _pod(args, command),
            }
          },
        }
      ],
    },
  }


def _pod(args: argparse.Namespace, command: list[str]) -> dict[str, Any]:
  container: dict[str, Any] = {
    'name': _CONTAINER,
    'image': args.image,
    # No shell: so Python is the container's first process, which gets SIGTERM. Kubernetes replaces $(NAME) in
    # these words, and reads $$ as $.
    'command': [word.replace('$', '$$') for word in command],
    'securityContext': {'privileged': True},
    'resources': {'limits': {'google.com/tpu': args.chips_per_host}},
  }
  selector = {
    'cloud.google.com/gke-tpu-accelerator': args.accelerator,
    'cloud.google.com/gke-tpu-topology': args.topology,
  }
  spec: dict[str, Any] = {
    'restartPolicy': 'Never',
    'terminationGracePeriodSeconds': args.grace_seconds,
    'nodeSelector': selector,
    'containers': [container],
  }
  annotations = {}
  if args.spot:
    selector['cloud.google.com/gke-spot'] = 'true'
    spec['tolerations'] = [
      {'key': 'cloud.google.com/gke-spot', 'operator': 'Equal', 'value': 'true', 'effect': 'NoSchedule'}
    ]
  if args.service_account:
    spec['serviceAccountName'] = args.service_account
  if args.slices > 1:  # slices talk to each other over the hosts' network
    spec |= {'hostNetwork': True, 'dnsPolicy': 'ClusterFirstWithHostNet'}
  if args.bucket:
    annotations['gke-gcsfuse/volumes'] = 'true'
    attributes = {'bucketName': args.bucket, 'mountOptions': 'implicit-dirs'}
    if args.slices > 1:
      attributes['hostNetworkPodKSA'] = 'true'
    container['volumeMounts'] = [{'name': 'bucket', 'mountPath': args.mount}]
    spec['volumes'] = [
      {'name': 'bucket', 'csi': {'driver': 'gcsfuse.csi.storage.gke.io', 'volumeAttributes': attributes}}
    ]
  return {'metadata': {'annotations': annotations}, 'spec': spec}


def _hosts(topology: str, chips_per_host: int) -> int:
  """The hosts of a slice: 32 for '4x4x8' and 4 chips per host."""
  if not re.fullmatch(r'[1-9]\d*(x[1-9]\d*){1,2}', topology):
    raise UserError(f'--topology={topology} is not of the form 4x4 or 4x4x8.')
  chips = math.prod(map(int, topology.split('x')))
  if chips_per_host < 1 or chips % chips_per_host:
    raise UserError(
      f'--topology={topology} has {chips} chips, which --chips_per_host={chips_per_host} does not divide.'
    )
  return chips // chips_per_host


def _check(args: argparse.Namespace) -> None:
  # A pod's host name is NAME-slice-SLICE-HOST, which may have 63 characters.
  if not re.fullmatch(r'[a-z]([-a-z0-9]{0,43}[a-z0-9])?', args.name):
    raise UserError(
      f'--name={args.name} must have at most 45 characters, which are lower-case letters, digits and -, and '
      f'begin with a letter.'
    )
  if bool(args.bucket) != bool(args.mount):
    raise UserError(
      '--bucket and --mount belong together: the name of a bucket, and the folder to mount it at.'
    )
  if not args.command:
    raise UserError('Nothing to run: give the flags of vit_jax.main, or a command, after --.')


def _parse() -> argparse.Namespace:
  parser = argparse.ArgumentParser(
    description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
  )
  parser.add_argument('--name', required=True)
  parser.add_argument('--image', required=True)
  parser.add_argument('--accelerator', required=True, help='such as tpu-v6e-slice, tpu-v5-lite-podslice')
  parser.add_argument('--topology', required=True, help='of a slice, in chips, such as 4x4')
  parser.add_argument('--chips_per_host', type=int, default=4)
  parser.add_argument('--slices', type=int, default=1)
  parser.add_argument('--spot', action='store_true')
  parser.add_argument('--queue', help='a LocalQueue of Kueue')
  parser.add_argument('--namespace', default='default')
  parser.add_argument('--service_account', help='a service account of Kubernetes that may use the bucket')
  parser.add_argument('--bucket', help='a bucket, mounted by the Cloud Storage FUSE CSI driver')
  parser.add_argument('--mount', help='the folder to mount the bucket at')
  parser.add_argument('--max_restarts', type=int, default=100)
  parser.add_argument(
    '--grace_seconds', type=int, default=120, help='between SIGTERM and SIGKILL, for a save'
  )
  parser.add_argument('--dry-run', action='store_true')
  parser.add_argument('command', nargs='*', help='after --: a command, or flags of vit_jax.main')
  return parser.parse_args()


def main() -> int:
  args = _parse()
  try:
    _check(args)
    command = args.command
    if command[0].startswith('-'):
      command = ['python', '-m', 'vit_jax.main', *command]
    text = yaml.safe_dump(jobset(args, command), sort_keys=False, width=10**6)
  except UserError as error:
    print(error, file=sys.stderr)
    return EXIT_USER_ERROR
  kubectl = ['kubectl', 'apply', f'--namespace={args.namespace}', '--filename=-']
  if args.dry_run:
    print(f'# {" ".join(kubectl)}\n{text}', end='')
    return 0
  try:
    return subprocess.run(kubectl, input=text, text=True, check=False).returncode
  except FileNotFoundError:
    print('kubectl is not installed; install it, or use --dry-run and apply what it prints.', file=sys.stderr)
    return EXIT_USER_ERROR


if __name__ == '__main__':
  sys.exit(main())
