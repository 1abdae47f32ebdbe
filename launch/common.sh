# shellcheck shell=bash
# Functions that the scripts of this folder share; they source it. It needs bash 4.4 or newer.
#
# It reads variables of the scripts, and they read its own:
# shellcheck disable=SC2034,SC2154

set -euo pipefail

readonly EXIT_USER_ERROR=2  # vit_jax/foundation/errors.py has both
readonly EXIT_RESTART=75

fail() {
  printf '%s\n' "$1" >&2
  exit "$EXIT_USER_ERROR"
}

# Prints the arguments as one text that any POSIX shell splits into the same arguments. So they survive ssh,
# which hands a command to the shell at the other end. (gcloud cuts --command at single spaces and ssh joins
# the parts with single spaces, so nothing is lost.)
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

# Runs a command, or with --dry-run prints it in a form that can be pasted.
run() {
  if [[ -n ${option[dry-run]:-} ]]; then
    quoted "$@"
    printf '\n'
  else
    "$@"
  fi
}

# parse 'zone= type= spot' "$@" reads the options that the first argument lists: --zone=Z sets ${option[zone]}
# to Z, --spot sets ${option[spot]} to 1. Other words go into `words`, and what follows -- into `rest`.
# --dry-run and --help are always known.
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

# Puts what follows -- into the array `command`. If it begins with a flag, the command is vit_jax.main.
make_command() {
  ((${#rest[@]})) || fail 'Nothing to run: give the flags of vit_jax.main, or a command, after --.'
  command=("${rest[@]}")
  if [[ ${rest[0]} == -* ]]; then
    command=(python -m vit_jax.main "${rest[@]}")
  fi
}

# Runs a command, and again as long as it ends with exit code 75. SIGTERM and SIGINT are passed on to it as
# SIGTERM, and after them it is not started again. Returns the command's last exit code.
supervise() {
  local child='' stopping='' interrupted='' code status
  trap 'stopping=1 interrupted=1; [[ -z $child ]] || kill -TERM "$child" 2>/dev/null || true' TERM INT
  while :; do
    # The command must not outlive this shell, even if the shell is killed.
    (exec python3 launch/end_with_parent.py "$$" "$@") &
    child=$!
    [[ -z $stopping ]] || kill -TERM "$child" 2>/dev/null || true
    # A signal interrupts `wait` while the command may still be saving, so it waits again. Then 127 means that
    # the command had ended, and that the first `wait` has returned its code.
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

# The rest is for the workers of a TPU (tpu_vm.sh and queued_resources.sh). Those scripts set `target`, the
# words of gcloud before ssh and scp, `name`, `place`, and the flags `nodes` (for all workers) and `first`
# (for one).

readonly FOLDER=vit_jax_run  # in the home folder of each worker
readonly OF_WORKERS='bucket= mount= ref= python='

# Prints the software version that Google's table gives for this kind of TPU, unless --version gives one.
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

# on_workers FLAGS… -- COMMAND… runs a command in our folder on the workers.
on_workers() {
  local flags=()
  while [[ $1 != -- ]]; do
    flags+=("$1")
    shift
  done
  shift
  run "${target[@]}" ssh "$name" "${flags[@]}" "${place[@]}" --command="cd $FOLDER && $(quoted "$@")"
}

# Copies this checkout's commit to all workers, installs it with a Python of its own, and mounts a bucket if
# asked. Returns the exit code of what fails, also where a caller that goes on switches `set -e` off.
setup_workers() {
  local archive=vit_jax_run.tar.gz ref=${option[ref]:-HEAD} code=0
  local setup=(bash launch/on_worker.sh setup "--python=${option[python]:-3.12}")
  if [[ -n ${option[bucket]:-} ]]; then
    require mount
    setup+=("--bucket=${option[bucket]}" "--mount=${option[mount]}")
  fi
  if [[ -z ${option[dry-run]:-} ]]; then
    archive=$(mktemp --suffix=.tar.gz)
  fi
  run git -C "$repository" archive --format=tar.gz --output="$archive" "$ref" || return
  run "${target[@]}" scp "$archive" "$name:$FOLDER.tar.gz" "${nodes[@]}" "${place[@]}" || code=$?
  [[ -n ${option[dry-run]:-} ]] || rm -f "$archive"
  ((code == 0)) || return "$code"
  local unpack="mkdir -p $FOLDER && tar -xzf $FOLDER.tar.gz -C $FOLDER && cd $FOLDER"
  run "${target[@]}" ssh "$name" "${nodes[@]}" "${place[@]}" --command="$unpack && $(quoted "${setup[@]}")"
}

# The commands that tpu_vm.sh and queued_resources.sh have in common.
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
