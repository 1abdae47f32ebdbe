#!/usr/bin/env bash
# Runs on a worker of a TPU, in the folder that the other scripts have unpacked there.
#
#   on_worker.sh setup [--python=3.12] [--bucket=B --mount=/mnt/b]   installs; mounts a bucket
#   on_worker.sh start COMMAND…     starts it detached, output in run.log; again after exit code 75 only
#   on_worker.sh once COMMAND…      runs it here and now
#   on_worker.sh status | result | stop

cd "$(dirname "${BASH_SOURCE[0]}")/.."
# shellcheck source=launch/common.sh
source launch/common.sh

readonly STOP_SECONDS=${VIT_JAX_STOP_SECONDS:-600}  # a save may take minutes

setup() {
  parse 'python= bucket= mount=' "$@"
  export PATH="$HOME/.local/bin:$PATH"
  # The images have Python 3.10; uv installs the version that we need.
  command -v uv >/dev/null || python3 -m pip install --quiet --user uv
  uv venv --quiet --allow-existing --python "${option[python]:-3.12}" .venv
  uv pip install --quiet --python .venv/bin/python --editable '.[tpu,gcs]'
  if [[ -n ${option[bucket]:-} ]]; then
    require mount
    mount_bucket "${option[bucket]}" "${option[mount]}"
  fi
  .venv/bin/python -c 'import jax; print("jax", jax.__version__, "is installed")'
}

mount_bucket() {
  if ! command -v gcsfuse >/dev/null; then
    local packages=https://packages.cloud.google.com/apt key=/usr/share/keyrings/cloud.google.asc
    curl --fail --silent --show-error "$packages/doc/apt-key.gpg" | sudo tee "$key" >/dev/null
    echo "deb [signed-by=$key] $packages gcsfuse-$(lsb_release -c -s) main" \
      | sudo tee /etc/apt/sources.list.d/gcsfuse.list >/dev/null
    # A fresh machine upgrades itself first, and holds apt's lock while it does.
    sudo apt-get -o DPkg::Lock::Timeout=600 --quiet update
    sudo apt-get -o DPkg::Lock::Timeout=600 --quiet --yes install gcsfuse
  fi
  mountpoint --quiet "$2" && return
  sudo mkdir -p "$2"
  sudo chown "$(id -u):$(id -g)" "$2"
  gcsfuse --implicit-dirs "$1" "$2"
}

# Prints the supervisor's process id if it is running. It looks at the command line, because after a restart
# of the machine another process may have that id.
running() {
  local pid
  [[ -f run.pid ]] && pid=$(<run.pid) && [[ -r /proc/$pid/cmdline ]] \
    && tr '\0' ' ' </proc/"$pid"/cmdline | grep --quiet 'on_worker.sh supervise' && echo "$pid"
}

start() {
  local pid
  if pid=$(running); then
    fail "$(hostname): a run is going on already (process $pid); stop it first."
  fi
  rm -f run.code
  # In a session of its own, so that it goes on when this ssh connection ends.
  setsid nohup bash launch/on_worker.sh supervise "$@" >>run.log 2>&1 </dev/null &
  echo "$!" >run.pid
  echo "$(hostname): started, output in $PWD/run.log"
}

stop() {
  local pid waited=0
  pid=$(running) || { echo "$(hostname): nothing runs"; return; }
  kill -TERM "$pid"
  while [[ -n $(running) ]]; do
    ((waited++ < STOP_SECONDS)) || fail "$(hostname): process $pid has not ended after $STOP_SECONDS s."
    sleep 1
  done
  echo "$(hostname): stopped"
}

status() {
  local pid
  if pid=$(running); then
    echo "$(hostname): running (process $pid)"
  else
    echo "$(hostname): nothing runs; last line: $(tail -n 1 run.log 2>/dev/null || echo 'no run.log')"
  fi
}

# Prints 'running', the exit code with which the run ended, or 'lost' if it was cut off.
result() {
  if running >/dev/null; then
    echo running
  else
    cat run.code 2>/dev/null || echo lost
  fi
}

supervise_here() {
  local code=0
  supervise "$@" || code=$?
  echo "Exit code $code: the end."
  echo "$code" >run.code
  exit "$code"
}

if [[ -d .venv ]]; then
  export PATH="$PWD/.venv/bin:$PATH"
fi
case ${1:-} in
  setup | start | stop | status | result) "$@" ;;
  supervise) shift && supervise_here "$@" ;;
  once) shift && exec "$@" ;;
  *) fail 'on_worker.sh setup | start | once | status | result | stop; the other scripts here call it.' ;;
esac
