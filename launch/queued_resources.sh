#!/usr/bin/env bash
# TPUs from Google's queue, one slice or several: waits for them, and asks again after a preemption.
#
#   launch/queued_resources.sh create NAME --zone=Z --type=v5litepod-256 [--version=V] [--slices=N]
#                                     [--spot | --reserved] [--valid-until=6h]
#   launch/queued_resources.sh wait NAME --zone=Z            until the TPU is there
#   launch/queued_resources.sh setup | preflight | run | logs | status | halt NAME …   as in launch/tpu_vm.sh
#   launch/queued_resources.sh keep NAME … -- --config=… --workdir=gs://b/run
#   launch/queued_resources.sh delete NAME --zone=Z
#
# `keep` does all of it and stays: create, wait, setup, run. After a preemption it deletes what is left,
# creates the same again and goes on in the same workdir, which must lie in a bucket. It ends with the exit
# code of the run. --project=P and --internal-ip are passed to gcloud. --dry-run prints the commands.

repository=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
# shellcheck source=launch/common.sh
source "$repository/launch/common.sh"

readonly POLL_SECONDS=${VIT_JAX_POLL_SECONDS:-60}
readonly MOST_STARTS=5  # of a run on machines that are there, until it begins on all of them

create() {
  require type
  local flags version
  version=$(runtime_version) || exit
  flags=("--accelerator-type=${option[type]}" "--runtime-version=$version")
  if [[ ${option[slices]:-1} == 1 ]]; then
    flags+=("--node-id=$name")
  else
    flags+=("--node-count=${option[slices]}" "--node-prefix=$name")
  fi
  [[ -z ${option[spot]:-} ]] || flags+=(--spot)
  [[ -z ${option[reserved]:-} ]] || flags+=(--reserved)
  [[ -z ${option[valid-until]:-} ]] || flags+=("--valid-until-duration=${option[valid-until]}")
  run "${target[@]}" create "$name" "${machine[@]}" "${flags[@]}"
}

delete() {
  run "${target[@]}" delete "$name" "${machine[@]}" --force --quiet
}

describe() {
  run "${target[@]}" describe "$name" "${machine[@]}" '--format=value(state.state)'
}

# Prints ACTIVE, WAITING_FOR_RESOURCES, SUSPENDED, …, or NONE if there is no such request. If Google does not
# answer it asks again, because that does not mean that the machines are lost.
state() {
  local text attempt=0
  while ((attempt++ < 10)); do
    if text=$(describe 2>/dev/null) && [[ -n $text ]]; then
      echo "$text"
      return
    fi
    text=$(describe 2>&1 >/dev/null || true)
    if [[ $text == *NOT_FOUND* ]]; then
      echo NONE
      return
    fi
    sleep "$POLL_SECONDS"
  done
  fail "gcloud does not tell the state of $name: $text"
}

# Waits until the TPU is there; fails if it was preempted meanwhile.
wait_until_active() {
  local now last=''
  if [[ -n ${option[dry-run]:-} ]]; then
    describe
    return
  fi
  while :; do
    now=$(state) || exit
    [[ $now == "$last" ]] || printf '%s: %s\n' "$name" "$now"
    last=$now
    case $now in
      ACTIVE) return 0 ;;
      SUSPENDING | SUSPENDED) return 1 ;;
      FAILED) fail "The request $name failed; gcloud's describe of it says why. Delete it then." ;;
      NONE | DELETING) fail "There is no request $name in ${option[zone]} (any more); create it first." ;;
    esac
    sleep "$POLL_SECONDS"
  done
}

# Returns when the machines are there and the run has begun on all of them. Machines that are new, or about to be taken
# away, may refuse ssh: then it looks again whether they are there, and tries again.
begin() {
  local attempt=0 code
  while :; do
    until wait_until_active; do
      recreate
    done
    code=0
    start_on_workers || code=$?
    ((code)) || return 0
    if ((++attempt == MOST_STARTS)); then
      printf '%s: the run could not be started, %s times (exit code %s). The machines are still there.\n' \
        "$name" "$attempt" "$code" >&2
      exit "$code"
    fi
    printf '%s: the run could not be started (exit code %s); trying again.\n' "$name" "$code" >&2
    again=1  # it may have begun on some of them
    sleep "$POLL_SECONDS"
  done
}

start_on_workers() {
  setup_workers || return
  # What is still running there waits for workers that are gone.
  [[ -z $again ]] || worker_command halt || return
  worker_command run
}

recreate() {
  printf '%s was preempted: the same again.\n' "$name"
  delete
  create
}

result() {
  on_workers "${first[@]}" -- bash launch/on_worker.sh result 2>/dev/null || true
}

keep() {
  local code='' again='' now
  make_command  # fails before anything is paid for if the command is missing
  if [[ -n ${option[dry-run]:-} ]]; then
    create && begin && describe && result
    echo '# after a preemption, and then on from the second command:'
    delete && create
    return
  fi
  now=$(state) || exit
  [[ $now != NONE ]] || create
  begin
  while :; do
    sleep "$POLL_SECONDS"
    now=$(state) || exit
    if [[ $now != ACTIVE ]]; then
      again='' code=''
      begin
      continue
    fi
    now=$(result)
    # A preemption that Google does not report yet looks like a failure, so a failure must be seen twice.
    [[ -z $code || $now != "$code" ]] || end_with "$code"
    code=''
    case $now in
      0) end_with 0 ;;
      lost)  # a machine was restarted, and needs its bucket mounted again too
        again=1
        begin
        ;;
      [1-9]*) code=$now ;;
    esac
  done
}

end_with() {
  printf '%s: the run ended with exit code %s; its output: logs %s. The machines are still there.\n' \
    "$name" "$1" "$name" >&2
  exit "$1"
}

parse "zone= project= type= version= slices= spot reserved valid-until= internal-ip $OF_WORKERS" "$@"
((${#words[@]} == 2)) || fail 'Give what to do and the name of the request; --help lists what there is.'
require zone
name=${words[1]}
target=(gcloud compute tpus queued-resources)
place=("--zone=${option[zone]}")
[[ -z ${option[project]:-} ]] || place+=("--project=${option[project]}")
machine=("${place[@]}")  # --internal-ip is for ssh and scp alone
[[ -z ${option[internal-ip]:-} ]] || place+=(--internal-ip)
nodes=(--node=all --worker=all) first=(--node=0 --worker=0)

case ${words[0]} in
  create) create ;;
  wait) wait_until_active || fail "$name was preempted already; delete it and create it again." ;;
  keep) keep ;;
  delete) delete ;;
  *) worker_command "${words[0]}" ;;
esac
