#!/usr/bin/env bash
# Teaches a small model to find needles (rows made by `hysparse eval ruler --samples-only`, answers alone learned), then asks it. From the repository's root:
#   HYSPARSE=build/bin/hysparse OUT=out/needle FLAGS="--device cuda --dtype bf16" bash examples/needle/needle.sh [hysparse | full | hybrid_swa | window]
# What each step does and what to expect: examples/needle/README.md. A second arm with the same OUT reuses tokenizer and data.
set -euo pipefail
arm=${1:-hysparse}
here=$(cd "$(dirname "$0")" && pwd)
: "${HYSPARSE:=build/bin/hysparse}" "${OUT:=out/needle}" "${FLAGS=}"
SAMPLES=${SAMPLES:-30000}                              # short ones; an eighth as many long ones
STEPS=${STEPS:-1500,500}                               # of the short and the long phase
SHORT=${SHORT:-256} LONG=${LONG:-1024}                 # tokens of prompt and answer; the long one is the trained length
DECAY=${DECAY:-200}                                    # the last steps of each phase, in which the rate falls
ROWS=${ROWS:-64,16}                                    # rows of LONG tokens a step
ASK=${ASK:-100}                                        # samples a length
mkdir -p "$OUT"
config=$here/needle.json

# Another seed than the evaluation's 42: no sample is in both.
samples() {  # NAME LENGTH COUNT SEED TASKS
  "$HYSPARSE" eval ruler --model "$OUT/tokenizer" --samples-only "$OUT/$1.samples" --lengths "$2" --samples "$3" --seed "$4" --tasks "$5" --answer-tokens 32 --chat-template plain
  python3 "$here/rows.py" "$OUT/$1.samples" >"$OUT/$1.jsonl"
}
if [ ! -e "$OUT/long" ]; then
  [ -e "$OUT/tokenizer" ] || "$HYSPARSE" tokenizer train --input "$here"/../../data/en/*.txt --vocab-size 1024 --out "$OUT/tokenizer"
  samples short "$SHORT" "$SAMPLES" 1 niah_single_1,niah_multikey_2
  samples long "$LONG" $((SAMPLES / 8)) 2 niah_single_1,niah_multikey_2
  for phase in short long; do
    "$HYSPARSE" data prepare --chat --seq-len "$LONG" --chat-template plain --tokenizer "$OUT/tokenizer" --input "$OUT/$phase.jsonl" --out "$OUT/$phase" --holdout 0.01
  done
fi
run=$OUT/$arm
"$HYSPARSE" train --config "$config" --set attention="$arm" --data "$OUT/short" --out "$run/1" $FLAGS --set train.seq_len="$LONG" --set train.decay_steps="$DECAY" --set train.steps="${STEPS%,*}" --set train.global_batch_size="${ROWS%,*}"
"$HYSPARSE" train --config "$config" --set attention="$arm" --from "$run/1/model" --data "$OUT/long" --out "$run/2" $FLAGS --set train.seq_len="$LONG" --set train.decay_steps="$DECAY" --set train.steps="${STEPS#*,}" --set train.global_batch_size="${ROWS#*,}"
"$HYSPARSE" eval ruler --model "$run/2/model" --chat --tasks niah_single_1,niah_multikey_2 --lengths "$((LONG / 2)),$LONG" --samples "$ASK" --answer-tokens 32 --out "$run/ruler" $FLAGS
