#!/usr/bin/env bash
# A TPU VM, or a pod slice of several, from create to delete.
#
#   launch/tpu_vm.sh create NAME --zone=Z --type=v3-32 [--version=V] [--spot]
#   launch/tpu_vm.sh setup NAME --zone=Z [--bucket=B --mount=/mnt/b] [--ref=HEAD] [--python=3.12]
#   launch/tpu_vm.sh preflight NAME --zone=Z -- --workdir=gs://b/run --data=tfds:imagenet2012
#   launch/tpu_vm.sh run NAME --zone=Z -- --config=configs/vit_l16.py --workdir=gs://b/run
#   launch/tpu_vm.sh logs | status | halt NAME --zone=Z     (halt ends the run, with a save)
#   launch/tpu_vm.sh stop | delete NAME --zone=Z            (stops or deletes the machines)
#
# --project=P and --internal-ip are passed to gcloud. --dry-run prints the commands. `run` starts the run
# detached on all workers; after exit code 75 it is started again there. What follows -- is a command, or
# flags of vit_jax.main.

repository=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
# shellcheck source=launch/common.sh
source "$repository/launch/common.sh"

parse "zone= project= type= version= spot internal-ip $OF_WORKERS" "$@"
((${#words[@]} == 2)) || fail 'Give what to do and the name of the TPU; --help lists what there is.'
require zone
name=${words[1]}
target=(gcloud compute tpus tpu-vm)
place=("--zone=${option[zone]}")
[[ -z ${option[project]:-} ]] || place+=("--project=${option[project]}")
machine=("${place[@]}")  # --internal-ip is for ssh and scp alone
[[ -z ${option[internal-ip]:-} ]] || place+=(--internal-ip)
nodes=(--worker=all) first=(--worker=0)

case ${words[0]} in
  create)
    require type
    version=$(runtime_version)
    flags=("--accelerator-type=${option[type]}" "--version=$version")
    [[ -z ${option[spot]:-} ]] || flags+=(--spot)
    run "${target[@]}" create "$name" "${machine[@]}" "${flags[@]}"
    ;;
  stop) run "${target[@]}" stop "$name" "${machine[@]}" ;;
  delete) run "${target[@]}" delete "$name" "${machine[@]}" --quiet ;;
  *) worker_command "${words[0]}" ;;
esac
