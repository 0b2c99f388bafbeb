#!/bin/sh
# Asks a running server with curl: ./chat.sh [URL] ; a key, where one is needed, is in HYSPARSE_API_KEY.
set -eu
url=${1:-http://127.0.0.1:8080}
ask() {
  path=$1
  shift
  curl -sS --fail-with-body ${HYSPARSE_API_KEY:+-H "Authorization: Bearer $HYSPARSE_API_KEY"} -H "Content-Type: application/json" "$@" "$url$path"
  echo
}
ask /v1/models
ask /tokenize -d '{"prompt": "It is a truth"}'
ask /v1/completions -d '{"prompt": "It is a truth", "max_tokens": 16, "temperature": 0, "logprobs": 2}'
ask /v1/completions -N -d '{"prompt": "It is a truth", "max_tokens": 16, "stream": true, "stream_options": {"include_usage": true}}'
ask /v1/completions -d '{"prompt": "A number: ", "max_tokens": 8, "response_format": {"type": "regex", "pattern": "[0-9]{3}"}}'
