# shellcheck shell=bash
# What the scripts of this folder share; they source it. Nothing happens here. (bash 4.4 or newer)
#
# It reads variables of theirs, and they read its:
# shellcheck disable=SC2034,SC2154

set -euo pipefail

readonly EXIT_USER_ERROR=2  # vit_jax/errors.py has both
readonly EXIT_RESTART=75

fail() {
  printf '%s\n' "$1" >&2
  exit "$EXIT_USER_ERROR"
}

# The arguments as one text that any POSIX shell splits into the same arguments: they survive ssh, which hands
# a command to the shell at the other end. (gcloud cuts --command at single spaces and ssh joins the parts
# with single spaces: nothing is lost on the way.)
quoted() {
  local word text=''
  for word in "$@"; do
    if [[ ! $word =~ ^[A-Za-z0-9_@%+=:,./-]+$ ]]; then
      word="'${word//\'/\'\\\'\'}'"
    fi
    text+="${text:+ }$word"
  done
  printf '%s' "$text"
}

# Runs a command; with --dry-run prints it instead, in a form that can be pasted.
run() {
  if [[ -n ${option[dry-run]:-} ]]; then
    quoted "$@"
    printf '\n'
  else
    "$@"
  fi
}

# parse 'zone= type= spot' "$@": --zone=Z becomes ${option[zone]}, --spot ${option[spot]}=1, what is neither
# goes into `words`, and what follows -- into `rest`. --dry-run and --help are always there.
parse() {
  local known=" $1 dry-run help " argument name
  shift
  declare -gA option=()
  declare -ga words=() rest=()
  while (($#)); do
    argument=$1
    shift
    case $argument in
      --) rest=("$@") && break ;;
      --*=*)
        name=${argument%%=*} && name=${name#--}
        [[ $known == *" $name= "* ]] || fail "--$name=… is not an option here; --help lists them."
        option[$name]=${argument#*=}
        ;;
      --*)
        name=${argument#--}
        [[ $known != *" $name= "* ]] || fail "--$name needs a value: --$name=VALUE."
        [[ $known == *" $name "* ]] || fail "$argument is not an option here; --help lists them."
        option[$name]=1
        ;;
      *) words+=("$argument") ;;
    esac
  done
  if [[ -n ${option[help]:-} ]]; then
    # The comment at the top of the script.
    sed -n '2,/^[^#]/{/^#/s/^# \{0,1\}//p}' "$0"
    exit 0
  fi
}

require() {
  local name
  for name in "$@"; do
    [[ -n ${option[$name]:-} ]] || fail "--$name=… is missing; --help says what it is."
  done
}

# What follows -- as a command in the array `command`: flags alone are those of the training.
make_command() {
  ((${#rest[@]})) || fail 'Nothing to run: give the flags of vit_jax.main, or a command, after --.'
  command=("${rest[@]}")
  if [[ ${rest[0]} == -* ]]; then
    command=(python -m vit_jax.main "${rest[@]}")
  fi
}

# Runs a command, and again as long as it ends with 75. SIGTERM and SIGINT are passed on, and end the loop.
# Returns the command's last exit code.
supervise() {
  local child='' stopping='' interrupted='' code status
  trap 'stopping=1 interrupted=1; [[ -z $child ]] || kill -TERM "$child" 2>/dev/null || true' TERM INT
  while :; do
    (exec "$@") &
    child=$!
    [[ -z $stopping ]] || kill -TERM "$child" 2>/dev/null || true
    # A signal interrupts `wait` while the command may still be saving; 127: it had been waited for.
    interrupted=1 code=''
    while [[ -n $interrupted ]]; do
      interrupted='' status=0
      wait "$child" || status=$?
      [[ -n $code && $status == 127 ]] || code=$status
    done
    child=''
    if [[ -z $stopping && $code == "$EXIT_RESTART" ]]; then
      printf 'Exit code %s: starting again in %s s.\n' "$code" "${VIT_JAX_RESTART_SECONDS:-10}"
      sleep "${VIT_JAX_RESTART_SECONDS:-10}"
    fi
    if [[ -n $stopping || $code != "$EXIT_RESTART" ]]; then
      trap - TERM INT
      return "$code"
    fi
  done
}

# What follows is for the workers of a TPU (tpu_vm.sh, queued_resources.sh). Those set `target`, the gcloud
# words in front of ssh and scp, `name`, `place`, and the flags `nodes` (all workers) and `first` (one).

readonly FOLDER=vit_jax_run  # in the home folder of each worker
readonly OF_WORKERS='bucket= mount= ref= python='

# The software that Google's table gives for this kind of TPU, unless --version says.
runtime_version() {
  if [[ -n ${option[version]:-} ]]; then
    echo "${option[version]}"
    return
  fi
  case ${option[type]} in
    v6e-*) echo v2-alpha-tpuv6e ;;
    v5p-*) echo v2-alpha-tpuv5 ;;
    v5litepod-*) echo v2-alpha-tpuv5-lite ;;
    v[234]-*) echo tpu-ubuntu2204-base ;;
    *) fail "What software --type=${option[type]} needs is not known here; give --version=…." ;;
  esac
}

# on_workers FLAGS… -- COMMAND…: runs a command in our folder on the workers.
on_workers() {
  local flags=()
  while [[ $1 != -- ]]; do
    flags+=("$1")
    shift
  done
  shift
  run "${target[@]}" ssh "$name" "${flags[@]}" "${place[@]}" --command="cd $FOLDER && $(quoted "$@")"
}

# This checkout's commit, to all workers, with its own Python and, if asked, a bucket.
setup_workers() {
  local archive=vit_jax_run.tar.gz ref=${option[ref]:-HEAD}
  local setup=(bash launch/on_worker.sh setup "--python=${option[python]:-3.12}")
  if [[ -n ${option[bucket]:-} ]]; then
    require mount
    setup+=("--bucket=${option[bucket]}" "--mount=${option[mount]}")
  fi
  if [[ -z ${option[dry-run]:-} ]]; then
    archive=$(mktemp --suffix=.tar.gz)
  fi
  run git -C "$repository" archive --format=tar.gz --output="$archive" "$ref"
  run "${target[@]}" scp "$archive" "$name:$FOLDER.tar.gz" "${nodes[@]}" "${place[@]}"
  [[ -n ${option[dry-run]:-} ]] || rm "$archive"
  local unpack="mkdir -p $FOLDER && tar -xzf $FOLDER.tar.gz -C $FOLDER && cd $FOLDER"
  run "${target[@]}" ssh "$name" "${nodes[@]}" "${place[@]}" --command="$unpack && $(quoted "${setup[@]}")"
}

# The commands that are the same for both kinds of TPU.
worker_command() {
  case $1 in
    setup) setup_workers ;;
    run)
      make_command
      on_workers "${nodes[@]}" -- bash launch/on_worker.sh start "${command[@]}"
      ;;
    preflight)
      on_workers "${nodes[@]}" -- bash launch/on_worker.sh once python launch/preflight.py "${rest[@]}"
      ;;
    logs) on_workers "${first[@]}" -- tail -n 100 -F run.log ;;
    status) on_workers "${nodes[@]}" -- bash launch/on_worker.sh status ;;
    halt) on_workers "${nodes[@]}" -- bash launch/on_worker.sh stop ;;
    *) fail "$1 is not something to do here; --help lists what there is." ;;
  esac
}
