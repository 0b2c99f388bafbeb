#!/usr/bin/env bash
# check.sh BUILD SOURCE: installs a build into an empty folder, moves it, and uses it as others do: the program, a C
# program over find_package, one over pkg-config. What they say must be what the build's program says.
set -euo pipefail
build=$1 source=$2
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
fail() { echo "FAILED: $*" >&2; exit 1; }

cmake --install "$build" --prefix "$work/first" >"$work/log" 2>&1 || { cat "$work/log" >&2; fail "cmake --install"; }
prefix=$work/moved
mv "$work/first" "$prefix"
lib=$(dirname "$(find "$prefix" -name libhysparse.so)")
for file in bin/hysparse include/hysparse/hysparse.h include/hysparse/status.h share/hysparse/configs/demo.json \
  share/hysparse/configs/bench-30m.json; do
  [ -f "$prefix/$file" ] || fail "$file is not installed"
done
[ -z "$(find "$prefix" -name '*.py')" ] || fail "Python files belong to the Python package alone"
if grep -rl -e "$source" -e "$build" "$prefix" --include='*.cmake' --include='*.pc' --include='*.h'; then fail "a path of the build"; fi

# Nothing but the API is visible.
others=$(nm -D --defined-only "$lib/libhysparse.so" | awk '{print $NF}' | grep -v '^hysparse_' || true)
[ -z "$others" ] || fail "exported beside the API: $others"
for name in $(grep -oE '^HYSPARSE_API [^(]*\b(hysparse_[a-z_]+)\(' "$prefix/include/hysparse/hysparse.h" | grep -oE 'hysparse_[a-z_]+\(' | tr -d '('); do
  nm -D --defined-only "$lib/libhysparse.so" | grep -qw "$name" || fail "$name is declared but not exported"
done

# A tiny random model.
cd "$work"
for i in $(seq 300); do echo "line $((i * 7919 % 1000)): the quick brown fox"; done >text.txt
cat >config.json <<'EOT'
{"num_hidden_layers": 5, "hidden_size": 32, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "intermediate_size": 48,
 "vocab_size": 300, "max_position_embeddings": 256, "attention": "hysparse", "sliding_window": 8, "hysparse_block_size": 8,
 "hysparse_topk_tokens": 16, "initializer_range": 0.3}
EOT
program=$prefix/bin/hysparse
"$program" tokenizer train --input text.txt --vocab-size 300 --out tok 2>/dev/null
"$program" init --config config.json --tokenizer tok --seed 7 --out model >/dev/null 2>&1
"$build/bin/hysparse" generate --model model --prompt "the quick" --max-new-tokens 30 --seed 5 >want

"$program" generate --model model --prompt "the quick" --max-new-tokens 30 --seed 5 >installed
cmp want installed || fail "the installed program says something else"
# From here no configs/ is in sight: the installed ones are found (f64 is refused after that, which saves the measuring).
message=$("$program" bench attention --dtype f64 2>&1) && fail "bench attention ran in f64"
case $message in *"runs in f32 or bf16"*) ;; *) fail "bench does not find the installed configs: $message" ;; esac
"$program" plan --config "$prefix/share/hysparse/configs/hysparse-7b.json" --context 1024 >/dev/null

cmake -S "$source/examples/c" -B example -DCMAKE_PREFIX_PATH="$prefix" -DCMAKE_C_FLAGS="-Wall -Wextra -Wpedantic -Werror" >log 2>&1 &&
  cmake --build example >>log 2>&1 || { cat log >&2; fail "the example over find_package"; }
grep -q "^hysparse_DIR:PATH=$prefix/" example/CMakeCache.txt || fail "find_package found another hysparse"
./example/generate model "the quick" 30 5 >over-cmake 2>said || { cat said >&2; fail "the example over find_package does not run"; }
cmp want over-cmake || fail "the example over find_package says something else"
sed 's/find_package(hysparse 0.1 /find_package(hysparse 9.0 /' "$source/examples/c/CMakeLists.txt" >CMakeLists.txt
cp "$source/examples/c/generate.c" .
if cmake -S . -B too-new -DCMAKE_PREFIX_PATH="$prefix" >log 2>&1; then fail "find_package(hysparse 9.0) took this version"; fi

PKG_CONFIG_PATH=$(dirname "$(find "$prefix" -name hysparse.pc)")
export PKG_CONFIG_PATH
# shellcheck disable=SC2046
${CC:-cc} -std=c11 -Wall -Wextra -Werror generate.c -o over-pc $(pkg-config --cflags --libs hysparse) || fail "the example over pkg-config"
LD_LIBRARY_PATH=$lib ./over-pc model "the quick" 30 5 >over-pkg-config 2>said || { cat said >&2; fail "the example over pkg-config does not run"; }
cmp want over-pkg-config || fail "the example over pkg-config says something else"
[ "$(pkg-config --modversion hysparse)" = "$("$program" --version | cut -d' ' -f2)" ] || fail "hysparse.pc has another version"

# The example's own errors.
status=0
./example/generate nowhere 2>said || status=$?
[ $status = 1 ] && grep -q '^error: nowhere' said || fail "the example with a missing model: $status, $(cat said)"
echo "installed, found and used"
