#!/usr/bin/env bash
# A study on the GPUs that are here, within TOTAL seconds, and what comes of it in a few files. From the repository's root:
#   HYSPARSE=build/bin/hysparse HYSPARSE_CUDA_LIBRARY=build/cuda/lib/libhysparse_cuda.so OUT=out TOTAL=500 bash bench/gpu/study/run.sh FILE [MORE FLAGS OF hysparse study]
# PREVIOUS=NAME.runs.tar.xz of an earlier call: its finished runs are not made again. JOBS: runs side by side. CURVES=200: print accuracies at every 200 steps. Leaves in OUT:
#   NAME.md .html .json   the report        NAME.runs.tar.xz   finished runs, curves of unfinished ones, the end of their logs
#   NAME.oracle.tar.xz    what the full layers of a trained model select, a task each (ORACLE=0: none)
set -u
file=${1:?the study}; shift
: "${HYSPARSE:?}" "${OUT:?}"
TOTAL=${TOTAL:-500}
GPUS=${GPUS:-$(nvidia-smi -L | wc -l)}
JOBS=${JOBS:-$((5 * GPUS))}
FLAGS=${FLAGS---gpus $GPUS}          # --gpus N implies --device cuda
name=$(basename "$file" .json)
work=${WORK:-/tmp/study}/$name
began=$(date +%s)
say() { echo "[$(( $(date +%s) - began )) s] $*"; }
mkdir -p "$work" "$OUT"; OUT=$(realpath "$OUT")
[ -z "${PREVIOUS:-}" ] || tar -C "$work" -xJf "$PREVIOUS" || exit 1
nvidia-smi --query-gpu=name,driver_version --format=csv,noheader 2>/dev/null

# The last 35 s save the runs under way, look at selections and pack.
$HYSPARSE study "$file" --out "$work" $FLAGS --jobs "$JOBS" --budget $((TOTAL - 35))s "$@" 2>&1 | tail -n 70
say "study stopped"
[ "${CURVES:-0}" = 0 ] || python3 "$(dirname "$0")/curves.py" "$work" "$CURVES"

# What the full layers of trained models select, a task each.
selections() {
  local arm model task
  mkdir -p "$work/oracle"
  for arm in hysparse full; do
    model=$(ls -d "$work"/runs/$arm-lr*-seed*/*-"$long"/model 2>/dev/null | head -n 1)
    [ -n "$model" ] || continue
    python3 - "$file" <<'PY' | { while read -r label flags; do
import json, sys
for e in json.load(open(sys.argv[1]))["evaluations"]:
    if e["name"].startswith(("walk 2", "thread 2", "paragraph 2", "chain 2")):
        print(e["name"].replace(" ", "-"), *(f"--{k} {','.join(map(str, v)) if isinstance(v, list) else v}" for k, v in e.items() if k not in ("name", "samples", "curve_samples")))
PY
      timeout 20 $HYSPARSE eval oracle --model "$model" ${ORACLE_FLAGS:---device cuda --dtype bf16 --threads 2} --rows 16 $flags \
        --json "$work/oracle/$label-$arm.json" --html "$work/oracle/$label-$arm.html" >"$work/oracle/$label-$arm.txt" 2>&1 &
    done; wait; }
  done
}
long=$(python3 -c 'import json, sys; print(json.load(open(sys.argv[1]))["phases"][-1]["name"])' "$file")
[ "${ORACLE:-1}" = 0 ] || selections

for kind in md html json; do cp "$work/report.$kind" "$OUT/$name.$kind"; done
for run in "$work"/runs/*/; do
  [ -e "$run/log.txt" ] || continue  # an earlier call's
  tail -n 3 "$run/log.txt" >"$run/end.txt"
  grep -h '"kind":"train"' "$run"/*-*/log.jsonl 2>/dev/null | cut -c1-200 >"$run/speed.txt"
done
(cd "$work" && tar -cJf "$OUT/$name.runs.tar.xz" --ignore-failed-read $(ls runs/*/run.json runs/*/result.json runs/*/curve.jsonl runs/*/end.txt runs/*/speed.txt 2>/dev/null))
[ ! -d "$work/oracle" ] || tar -C "$work" -cJf "$OUT/$name.oracle.tar.xz" oracle
say "results: $(cd "$OUT" && ls -s | tr '\n' ' ')"
