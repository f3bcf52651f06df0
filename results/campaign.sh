#!/usr/bin/env bash
# Measures several sweeps, one at a time on each GPU, and packs run folders for results/.
#
#   campaign.sh start DIR TARGET DRAFT NAME:GPU[:THRESHOLD]...
#                                  sweep results/configs/NAME.toml on that GPU (0,1: on both) into DIR/NAME, in the background,
#                                  those of one GPU one after the other; what DIR/NAME already holds is resumed, on the GPU
#                                  named now, with the models that it was begun with
#   campaign.sh wait DIR SECONDS                     show progress until all have ended, at most so long; exit 1 while some run
#   campaign.sh pack DIR OUT                         what belongs into results/, one DIR/NAME.tar per run, readable at any moment
#   campaign.sh stop DIR                             every sweep ends as at Ctrl-C, within half a minute; start resumes it
set -euo pipefail
repository=$(cd "$(dirname "$0")/.." && pwd)

absolute() {  # a path from here; anything else, as a model's name, stays
  if [ -e "$1" ]; then realpath -s "$1"; else echo "$1"; fi
}

start() {
  local dir target draft gpu job names
  mkdir -p "$1"
  dir=$(absolute "$1") target=$(absolute "$2") draft=$(absolute "$3")
  if running "$dir"; then
    echo "$1 still measures; wait for it, or stop it first" >&2
    exit 1
  fi
  rm -f "$dir"/*.pid
  for gpu in $(printf '%s\n' "${@:4}" | cut -d: -f2 | sort -u); do
    names=()
    for job in "${@:4}"; do
      [ "$(cut -d: -f2 <<<"$job")" != "$gpu" ] || names+=("$(cut -d: -f1,3 <<<"$job")")
    done
    setsid nohup "$repository/results/campaign.sh" queue "$dir" "$target" "$draft" "$gpu" "${names[@]}" >/dev/null 2>&1 &
    echo $! >"$dir/gpu$gpu.pid"
  done
}

queue() {  # what start runs in the background for one GPU
  local dir=$1 target=$2 draft=$3 gpu=$4 job name sweep='' python=$repository/.venv/bin/python
  [ -x "$python" ] || python=python3
  cd "$repository"
  trap '[ -z "$sweep" ] || { kill -TERM "$sweep" || true; wait "$sweep" || true; }; exit 130' TERM
  for job in "${@:5}"; do
    name=${job%%:*}
    if [ -f "$dir/$name/manifest.json" ]; then
      [ -f "$dir/$name/requests.jsonl" ] || gunzip -q "$dir/$name/requests.jsonl.gz" || true  # the sweep says what lacks
      set -- --out "$dir/$name" --resume
    else
      set -- --config "results/configs/$name.toml" --model "$target" --draft "$draft" --out "$dir/$name"
      [ "$name" = "$job" ] || set -- "$@" --threshold "${job##*:}"
    fi
    "$python" -m specpivot sweep "$@" --server-env "CUDA_VISIBLE_DEVICES=$gpu" >"$dir/$name.json" 2>>"$dir/$name.log" &
    sweep=$!
    wait "$sweep" || true  # whatever became of it, the next one is worth measuring
  done
}

running() {  # one that has ended may stay as a zombie where process 1 is no init, as in a container
  local file alive=1
  for file in "$1"/*.pid; do
    grep -q '^State:[[:space:]]*[^XZ]' "/proc/$(cat "$file")/status" 2>/dev/null && alive=0
  done
  return $alive
}

wait_for() {
  local dir=$1 end=$((SECONDS + $2)) file
  while running "$dir" && [ $SECONDS -lt $end ]; do sleep 2; done
  for file in "$dir"/*.log; do
    echo "== $(basename "$file" .log): $(($(wc -l 2>/dev/null <"${file%.log}/levels.csv" || echo 1) - 1)) points"
    tail -n 6 "$file" | cut -c1-200
  done
  ! running "$dir"
}

pack() {
  local dir=$1 out=$2 run name
  for run in "$dir"/*/manifest.json; do
    run=$(dirname "$run") name=$(basename "$run")
    [ -f "$run/requests.jsonl" ] && [ -f "$run/levels.csv" ] || continue  # packed already, or no point yet
    gzip -9 -c "$run/requests.jsonl" >"$dir/$name.requests.gz"
    tar -C "$dir" -cf "$out/$name.tar" --transform "s,^$name.requests.gz,$name/requests.jsonl.gz," \
      "$name/manifest.json" "$name/levels.csv" "$name.requests.gz"
  done
}

stop() {  # not SIGINT, which a script's background processes ignore from the start
  local dir=$1 end=$((SECONDS + 30)) file
  for file in "$dir"/*.pid; do
    kill -TERM "$(cat "$file")" 2>/dev/null || true
  done
  while running "$dir" && [ $SECONDS -lt $end ]; do sleep 0.2; done
}

case ${1:-} in
  start) start "${@:2}" ;;
  queue) queue "${@:2}" ;;
  wait) wait_for "${@:2}" ;;
  pack) pack "${@:2}" ;;
  stop) stop "${@:2}" ;;
  *) sed -n '2,10s/^# \{0,1\}//p' "$0"; exit 2 ;;
esac
