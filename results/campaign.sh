#!/usr/bin/env bash
# Measures several sweeps at once, one GPU each, and packs run folders for results/.
#
#   campaign.sh start DIR TARGET DRAFT NAME:GPU...   sweep results/configs/NAME.toml on that GPU into DIR/NAME, in the background;
#                                                    what DIR/NAME already holds is resumed
#   campaign.sh wait DIR SECONDS                     show progress until all have ended, at most so long; exit 1 while some run
#   campaign.sh pack DIR OUT                         what belongs into results/, one DIR/NAME.tar per run, readable at any moment
#   campaign.sh stop DIR                             Ctrl-C to every sweep; --resume goes on from there
set -euo pipefail
repository=$(cd "$(dirname "$0")/.." && pwd)

start() {
  local dir=$1 target=$2 draft=$3 name gpu
  mkdir -p "$dir"
  for pair in "${@:4}"; do
    name=${pair%:*} gpu=${pair##*:}
    (
      cd "$repository"
      if [ -f "$dir/$name/manifest.json" ]; then
        set -- --out "$dir/$name" --resume
      else
        set -- --config "results/configs/$name.toml" --model "$target" --draft "$draft" --out "$dir/$name"
        set -- "$@" --server-env "CUDA_VISIBLE_DEVICES=$gpu"
      fi
      setsid nohup python3 -m specpivot sweep "$@" >"$dir/$name.json" 2>>"$dir/$name.log" &
      echo $! >"$dir/$name.pid"
    )
  done
}

running() {
  local file alive=1
  for file in "$1"/*.pid; do
    kill -0 "$(cat "$file")" 2>/dev/null && alive=0
  done
  return $alive
}

wait_for() {
  local dir=$1 end=$((SECONDS + $2)) file
  while running "$dir" && [ $SECONDS -lt $end ]; do sleep 2; done
  for file in "$dir"/*.log; do
    echo "== $(basename "$file" .log): $(($(wc -l <"${file%.log}/levels.csv" 2>/dev/null || echo 1) - 1)) points"
    tail -n 6 "$file" | cut -c1-200
  done
  ! running "$dir"
}

pack() {
  local dir=$1 out=$2 run name
  for run in "$dir"/*/manifest.json; do
    run=$(dirname "$run") name=$(basename "$run")
    gzip -9 -c "$run/requests.jsonl" >"$dir/$name.requests.gz"
    tar -C "$dir" -cf "$out/$name.tar" --transform "s,^$name.requests.gz,$name/requests.jsonl.gz," \
      "$name/manifest.json" "$name/levels.csv" "$name.requests.gz"
  done
}

stop() {
  local file
  for file in "$1"/*.pid; do
    kill -INT "$(cat "$file")" 2>/dev/null || true
  done
}

case ${1:-} in
  start) start "${@:2}" ;;
  wait) wait_for "${@:2}" ;;
  pack) pack "${@:2}" ;;
  stop) stop "${@:2}" ;;
  *) sed -n '2,9s/^# \{0,1\}//p' "$0"; exit 2 ;;
esac
