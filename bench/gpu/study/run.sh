#!/usr/bin/env bash
# The architecture study on one or two H200s, within TOTAL seconds (390). From the repository's root, with
#   HYSPARSE=path of the program, HYSPARSE_CUDA_LIBRARY set, OUT=an empty folder
set -u
here=$(cd "$(dirname "$0")" && pwd)
: "${HYSPARSE:?}" "${OUT:?}"
TOTAL=${TOTAL:-390} EXAMPLES=${EXAMPLES:-examples/study}
GPUS=${GPUS:-$(nvidia-smi -L | wc -l)}
PILOT=${PILOT:-40}
JOBS=${JOBS:-$((5 * GPUS))}          # more do not make a GPU faster: 4 kept it busy
FLAGS=${FLAGS---gpus $GPUS}          # --gpus N implies --device cuda
work=${WORK:-/tmp/study3}; mkdir -p "$work/pilots"
began=$(date +%s)
left() { echo $((TOTAL - ($(date +%s) - began))); }
say() { echo "[$(( $(date +%s) - began )) s] $*"; }
nvidia-smi --query-gpu=name,driver_version --format=csv,noheader 2>/dev/null; nproc

if [ ! -f "$work/walk.json" ]; then  # a second call on the same disk goes on instead
  python3 "$here/pilots.py" "$EXAMPLES" "$work/pilots"
  i=0
  for f in "$work"/pilots/*.json; do
    n=$(basename "$f" .json)
    flags=$FLAGS
    if [ "$GPUS" -gt 0 ]; then export CUDA_VISIBLE_DEVICES=$((i % GPUS)); flags="--device cuda"; fi
    $HYSPARSE study "$f" --out "$work/pilots/$n" $flags --budget "${PILOT}s" >"$work/pilots/$n.log" 2>&1 &
    i=$((i + 1))
  done
  wait
  unset CUDA_VISIBLE_DEVICES
  tail -n 2 "$work"/pilots/*/runs/*/log.txt
  say "pilots done"
  python3 "$here/pick.py" "$EXAMPLES" "$work/pilots" "$work" || exit 1
fi

study() {  # SECONDS MORE...
  local s=$1; shift
  [ "$s" -gt 5 ] || return 0
  $HYSPARSE study "$work/walk.json" --out "$work/walk" $FLAGS --jobs "$JOBS" --budget "${s}s" "$@" 2>&1 | tail -n 60
  say "study $* stopped"
}
# The search for the rates, then a seed of every arm before the next seed: what is there when time is up is a whole comparison.
study $(($(left) - 35)) --arms full,hybrid_swa,hysparse,random,window
study $(($(left) - 35))

$HYSPARSE study "$work/walk.json" --out "$work/walk" --report
for k in md html json; do cp "$work/walk/report.$k" "$OUT/walk.$k" 2>/dev/null; done
cp "$work/walk.json" "$OUT/walk.study.json"
cp "$work/pilots.json" "$OUT/" 2>/dev/null
tail -n 3 "$work"/walk/runs/*/log.txt >"$OUT/walk.logs.txt" 2>/dev/null
for r in "$work"/walk/runs/*/; do  # unfinished runs' curves and speeds too
  n=$(basename "$r"); mkdir -p "$OUT/runs/$n"; cp "$r"/curve.jsonl "$r"/result.json "$OUT/runs/$n/" 2>/dev/null
  for p in "$r"/*-*/; do grep '"kind":"train"' "$p/log.jsonl" 2>/dev/null | tail -n 1 | cut -c1-200 >>"$OUT/runs/$n/speed.txt"; done
done
# What the full layers of a trained model select, on both tasks.
for arm in hysparse full; do
  m=$(ls -d "$work"/walk/runs/$arm-lr*-seed1/*-512/model 2>/dev/null | head -1)
  [ -n "$m" ] || continue
  for c in 1 8; do
    timeout 12 $HYSPARSE eval oracle --model "$m" ${ORACLE_FLAGS:---device cuda --dtype bf16 --threads 2} --rows 8 --task walk --length 512 --pairs 32 --queries 6 --hops 3 --symbols 64 --chains $c \
      --set hysparse_block_size=16 --set hysparse_topk_tokens=32 --json "$OUT/oracle-chains$c-$arm.json" --html "$OUT/oracle-chains$c-$arm.html" || true
  done
done
tar -C "$OUT" -cJf "$work/study-results.tar.xz" . && mv "$work/study-results.tar.xz" "$OUT/" && say "results in $OUT/study-results.tar.xz: $(stat -c %s "$OUT/study-results.tar.xz") bytes"
