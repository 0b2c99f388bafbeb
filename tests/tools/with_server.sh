#!/usr/bin/env bash
# with_server.sh HYSPARSE COMMAND ...: trains a small model that knows one sentence by heart, serves it, and runs COMMAND ... URL. Then SIGTERM
# must end the server cleanly.
set -euo pipefail
hysparse=$1
shift
dir=$(mktemp -d)
server=
trap '[ -z "$server" ] || kill "$server" 2>/dev/null || true; rm -rf "$dir"' EXIT
for i in $(seq 0 1499); do echo "Line $((i * 7919 % 1000)): the quick brown fox jumps over the lazy dog."; done >"$dir/text.txt"
cat >"$dir/config.json" <<'JSON'
{"num_hidden_layers": 5, "hidden_size": 64, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16,
 "intermediate_size": 128, "vocab_size": 320, "max_position_embeddings": 2048, "attention": "hysparse",
 "full_attention_interval": 4, "sliding_window": 32, "hysparse_block_size": 16, "hysparse_topk_tokens": 64,
 "tie_word_embeddings": true, "train": {"steps": 100, "seq_len": 256, "global_batch_size": 4, "lr": 0.003}}
JSON
{
  "$hysparse" tokenizer train --input "$dir/text.txt" --vocab-size 320 --out "$dir/tok"
  "$hysparse" data prepare --tokenizer "$dir/tok" --input "$dir/text.txt" --out "$dir/data" --holdout 0.1
  "$hysparse" train --config "$dir/config.json" --data "$dir/data" --out "$dir/run"
} >"$dir/log" 2>&1 || { cat "$dir/log"; exit 1; }
"$hysparse" serve --model "$dir/run/model" --chat-template plain --port 0 --kv-memory 64MB 2>"$dir/serve.log" &
server=$!
for _ in $(seq 300); do
  url=$(sed -nE 's/^serving .* at (http:[^ ]*) .*/\1/p' "$dir/serve.log")
  [ -z "$url" ] || break
  sleep 0.1
done
[ -n "$url" ] || { cat "$dir/serve.log"; exit 1; }
"$@" "$url" || { cat "$dir/serve.log"; exit 1; }
kill -TERM "$server"
wait "$server"
server=
! grep -q "quick brown" "$dir/serve.log" || { echo "the log holds text of requests"; exit 1; }
