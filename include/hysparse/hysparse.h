/* libhysparse: HySparse language models from C. Load a model directory; logits, generation, perplexity, the
 * tokenizer, and what a config costs. docs/api.md tells it with examples.
 *
 * Errors. Functions return 0 (HYSPARSE_OK) or a negative code of hysparse/status.h; hysparse_last_error() is
 * then what was expected, what came and where, of the calling thread, until its next failing call. A failing
 * call leaves its outputs alone. No C++ exception leaves the library.
 *
 * Handles. Each is freed once with its own function; freeing NULL does nothing. Their values are never used
 * again: a call with a handle that was freed, or of another kind, is HYSPARSE_BAD_ARGUMENT, not a crash. A
 * generation keeps its model, and a tokenizer what it needs, so the order of freeing is free.
 *
 * Threads. Any function may be called from any thread. Calls on one model take turns, a token or a chunk of a
 * prompt at a time, so several generations may run side by side. A generation serves one thread at a time:
 * hysparse_generation_next while another thread is in it is HYSPARSE_BUSY. A tokenizer serves all threads at
 * once. No lock is held while a callback runs, so it may call the library. Results depend neither on the
 * number of threads nor on what else runs.
 *
 * fork(). A child must not use models and generations that its parent made: such calls are
 * HYSPARSE_BAD_ARGUMENT there (free only forgets them). It may use tokenizers and load models of its own.
 *
 * Structs. Options and results begin with their size: set options with their _INIT macro, results' `size` to
 * sizeof. Later versions only append, so a program built against an earlier header keeps working.
 *
 * Texts are UTF-8, given with their length in bytes (NUL bytes and invalid ones are fine in prompts) unless
 * they are names, which end at their NUL. */
#ifndef HYSPARSE_H
#define HYSPARSE_H

#include <stddef.h>
#include <stdint.h>

#include "hysparse/status.h"

#ifdef __cplusplus
extern "C" {
#endif

HYSPARSE_API const char* hysparse_version(void);    /* "0.1.0" */
HYSPARSE_API const char* hysparse_last_error(void); /* "" before the first error of this thread */
/* Frees what a function handed out with the words "free with hysparse_free". */
HYSPARSE_API void hysparse_free(void* memory);

/* ---- models */

typedef struct hysparse_model hysparse_model;

enum { HYSPARSE_LOG_DEBUG = 0, HYSPARSE_LOG_INFO = 1, HYSPARSE_LOG_WARNING = 2 };
typedef void (*hysparse_log_callback)(void* user, int level, const char* message);

typedef struct {
  size_t size;
  const char* dtype; /* of the computation: "f32", "bf16" or "f64" (the slow reference); NULL: "f32" */
  int32_t threads;   /* 0: all CPUs this process may use */
  hysparse_log_callback log; /* optional; called during hysparse_model_load only */
  void* log_user;
  const char* weights; /* what matrices are kept in: "dtype" (as the computation) or "int8"; NULL: "dtype" */
} hysparse_model_options;
#define HYSPARSE_MODEL_OPTIONS_INIT \
  { sizeof(hysparse_model_options), NULL, 0, NULL, NULL, NULL }

/* `dir`: config.json, model*.safetensors and, for text, tokenizer.json. `options` may be NULL. */
HYSPARSE_API int hysparse_model_load(const char* dir, const hysparse_model_options* options,
                                     hysparse_model** out);
HYSPARSE_API int hysparse_model_free(hysparse_model* model);

typedef struct {
  size_t size;
  int64_t vocab_size; /* rows of the head; a tokenizer may know fewer ids */
  int64_t context;    /* max_position_embeddings */
  int64_t layers;
  int64_t hidden_size;
  int64_t parameters;
  int32_t threads;
  int32_t has_tokenizer;
} hysparse_model_info;
HYSPARSE_API int hysparse_model_get_info(hysparse_model* model, hysparse_model_info* info);
/* config.json as the model runs it, a NUL-terminated JSON text; free with hysparse_free. */
HYSPARSE_API int hysparse_model_config(hysparse_model* model, char** json);

/* Logits of every token given those before it, by the path of training (no cache): row i of `logits`
 * [count, vocab_size] predicts token i + 1. `capacity`: floats that `logits` holds, at least count *
 * vocab_size. From 1 to `context` ids. */
HYSPARSE_API int hysparse_logits(hysparse_model* model, const int32_t* ids, size_t count, float* logits,
                                 size_t capacity);

/* ---- tokenizer */

typedef struct hysparse_tokenizer hysparse_tokenizer;

/* A folder with tokenizer.json, or that file. */
HYSPARSE_API int hysparse_tokenizer_load(const char* path, hysparse_tokenizer** out);
/* The model's own; a handle like any other, to be freed. HYSPARSE_BAD_ARGUMENT where it has none. */
HYSPARSE_API int hysparse_model_tokenizer(hysparse_model* model, hysparse_tokenizer** out);
HYSPARSE_API int hysparse_tokenizer_free(hysparse_tokenizer* tokenizer);

typedef struct {
  size_t size;
  int32_t vocab_size; /* largest id + 1 */
  int32_t eos;        /* -1: none known */
} hysparse_tokenizer_info;
HYSPARSE_API int hysparse_tokenizer_get_info(hysparse_tokenizer* tokenizer, hysparse_tokenizer_info* info);

/* special != 0: the texts of special tokens ("<|endoftext|>") become their ids; else they are plain text.
 * Neither BOS nor EOS is added. `ids`: free with hysparse_free, also when count is 0. */
HYSPARSE_API int hysparse_tokenizer_encode(hysparse_tokenizer* tokenizer, const char* text, size_t bytes,
                                           int special, int32_t** ids, size_t* count);
/* The same with what the tokenizer's files put before every text (usually nothing, or BOS): what
 * hysparse_generate reads, and what a document for hysparse_perplexity begins with. Not added twice where
 * special != 0 and the text begins with it. */
HYSPARSE_API int hysparse_tokenizer_encode_from_start(hysparse_tokenizer* tokenizer, const char* text,
                                                      size_t bytes, int special, int32_t** ids,
                                                      size_t* count);
/* special != 0: special tokens are written, too; else they are left out. `text` is the tokens' bytes (which
 * may end within a UTF-8 character) and a NUL that `bytes` does not count; free with hysparse_free. */
HYSPARSE_API int hysparse_tokenizer_decode(hysparse_tokenizer* tokenizer, const int32_t* ids, size_t count,
                                           int special, char** text, size_t* bytes);

/* ---- generation */

typedef struct {
  size_t size;
  int64_t max_new_tokens;    /* -1: until the context is full */
  double temperature;        /* 0: always the likeliest token */
  int64_t top_k;             /* draw among the k likeliest; 0: all */
  double top_p;              /* draw among the fewest likeliest whose probabilities reach this sum */
  double min_p;              /* drop tokens less likely than this share of the likeliest */
  double repetition_penalty; /* above 1: tokens seen before become less likely */
  uint64_t seed;             /* the same seed gives the same answer, on any number of threads */
  const char* const* stop;   /* stop_count texts; the answer ends before the first that appears */
  size_t stop_count;
  int64_t context;            /* most tokens of prompt and answer together; 0: the model's */
  int64_t chunk;              /* tokens of the prompt that go through the model at once */
  int32_t ignore_eos;         /* go on behind end-of-text tokens */
  int32_t special;            /* hysparse_generate: as in hysparse_tokenizer_encode, for the prompt */
  const char* kv_cache_dtype; /* as in hysparse_engine_options; NULL: "auto" */
} hysparse_generate_options;
#define HYSPARSE_GENERATE_OPTIONS_INIT \
  { sizeof(hysparse_generate_options), 256, 0.8, 0, 1.0, 0.0, 1.0, 0, NULL, 0, 0, 512, 0, 0, NULL }

enum {
  HYSPARSE_FINISH_NONE = 0, /* still going */
  HYSPARSE_FINISH_STOP = 1, /* a stop text */
  HYSPARSE_FINISH_EOS = 2,
  HYSPARSE_FINISH_LENGTH = 3, /* max_new_tokens, or the context is full */
  HYSPARSE_FINISH_CANCELLED = 4,
  HYSPARSE_FINISH_ERROR = 5 /* of the engine's answers: the event says why */
};

typedef struct hysparse_generation hysparse_generation;

/* Starts an answer; nothing is computed yet. Without ids the model's BOS or end-of-text token is the prompt,
 * as at the start of a new text. `options` may be NULL. A model without a tokenizer takes no stop texts. */
HYSPARSE_API int hysparse_generation_start(hysparse_model* model, const int32_t* prompt, size_t count,
                                           const hysparse_generate_options* options,
                                           hysparse_generation** out);

typedef struct {
  size_t size;
  const char* text; /* what is new: whole characters, nothing of a stop text; often empty. Lives until the
                       next call with this generation */
  size_t text_bytes;
  int32_t token; /* drawn in this step; -1: none (the prompt was read) */
} hysparse_piece;
/* One step: reads a chunk of the prompt, or draws a token. HYSPARSE_OK: there may be more; HYSPARSE_END: that
 * was the last piece (`piece` is filled then, too; empty once the answer was complete before). */
HYSPARSE_API int hysparse_generation_next(hysparse_generation* generation, hysparse_piece* piece);
/* From any thread: the answer ends at its next step. */
HYSPARSE_API int hysparse_generation_cancel(hysparse_generation* generation);

typedef struct {
  size_t size;
  const char* text; /* all pieces joined, NUL-terminated; lives until the next call with this generation */
  size_t text_bytes;
  const int32_t* tokens; /* drawn, a final EOS included; lives as long */
  size_t token_count;
  int32_t finish; /* HYSPARSE_FINISH_... */
  int64_t prompt_tokens;
  double prompt_seconds, decode_seconds;
  int64_t kv_bytes; /* of the answer's KV cache: pages in use and rings */
} hysparse_generation_result;
HYSPARSE_API int hysparse_generation_get_result(hysparse_generation* generation,
                                                hysparse_generation_result* result);
HYSPARSE_API int hysparse_generation_free(hysparse_generation* generation);

/* Called with every piece that has text; anything but 0 ends the answer. */
typedef int (*hysparse_text_callback)(void* user, const char* text, size_t bytes);
/* The whole of it: encodes the prompt, starts, calls back until the end. `callback` and `options` may be
 * NULL. `out`, unless NULL, receives the finished generation, for its result; to be freed. An answer that the
 * callback ended is no error: its finish is HYSPARSE_FINISH_CANCELLED. */
HYSPARSE_API int hysparse_generate(hysparse_model* model, const char* prompt, size_t bytes,
                                   const hysparse_generate_options* options, hysparse_text_callback callback,
                                   void* user, hysparse_generation** out);

/* ---- engine: many answers at once over one cache of bounded size (docs/engine.md) */

typedef struct hysparse_engine hysparse_engine;
typedef struct hysparse_answer hysparse_answer;

typedef struct {
  size_t size;
  int64_t context;            /* most tokens of prompt and answer together; 0: the model's */
  int64_t kv_bytes;           /* of the cache; 0: what is left */
  int64_t page_size;          /* tokens, a multiple of the selection block; 0: at least 64 */
  int64_t max_sequences;      /* answers that run at once; 0: the default */
  int64_t step_tokens;        /* most tokens that go through the model at once */
  int64_t snapshot_interval;  /* tokens between ring snapshots within a prompt */
  int64_t speculate;          /* most tokens that n-gram look-up proposes at once; 0: none */
  int64_t max_queued;         /* answers that may wait; -1: no limit */
  int32_t prefix_cache;       /* 0: every prompt is computed anew */
  int32_t recompute;          /* 0: preempted answers move to host memory; 1: they are computed again */
  int32_t batch_invariant;    /* -1: as the device has it; 0, 1 */
  const char* kv_cache_dtype; /* of full layers: "auto" (as the computation), "int8", "fp8"; NULL: "auto" */
} hysparse_engine_options;
#define HYSPARSE_ENGINE_OPTIONS_INIT \
  { sizeof(hysparse_engine_options), 0, 0, 0, 0, 512, 4096, 0, -1, 1, 0, -1, NULL }

/* Takes the cache's memory and starts the thread that computes; it takes turns with other calls on the model.
 */
HYSPARSE_API int hysparse_engine_start(hysparse_model* model, const hysparse_engine_options* options,
                                       hysparse_engine** out);
/* What still runs ends as cancelled. */
HYSPARSE_API int hysparse_engine_free(hysparse_engine* engine);

typedef struct {
  size_t size;
  int32_t n;            /* choices: answers to the same prompt */
  int32_t priority;     /* higher goes first */
  int32_t cache_prompt; /* 0: neither uses nor fills the prefix cache */
} hysparse_submit_options;
#define HYSPARSE_SUBMIT_OPTIONS_INIT \
  { sizeof(hysparse_submit_options), 1, 0, 1 }

/* Queues a request and returns at once. Both options may be NULL; of generate_options, context, chunk,
 * special and kv_cache_dtype do not matter here. What can never be served is HYSPARSE_BAD_ARGUMENT at once.
 */
HYSPARSE_API int hysparse_engine_submit(hysparse_engine* engine, const int32_t* prompt, size_t count,
                                        const hysparse_generate_options* options,
                                        const hysparse_submit_options* submit, hysparse_answer** out);

typedef struct {
  size_t size;
  int32_t choice;   /* -1: nothing new within the time */
  int32_t finish;   /* HYSPARSE_FINISH_...; nothing more of this choice follows */
  const char* text; /* what is new: whole characters. Pointers live until the next call with this answer */
  size_t text_bytes;
  const int32_t* tokens;
  size_t token_count;
  const char* error; /* of HYSPARSE_FINISH_ERROR; else empty */
  int32_t last;      /* 1: the very last event of all choices; the counts below are set */
  int64_t prompt_tokens, cached_tokens, completion_tokens;
} hysparse_event;
/* Waits up to timeout_ms for something new; events that nobody took run together. HYSPARSE_END: all was
 * taken. */
HYSPARSE_API int hysparse_answer_next(hysparse_answer* answer, int64_t timeout_ms, hysparse_event* event);
/* From any thread, at any time. */
HYSPARSE_API int hysparse_answer_cancel(hysparse_answer* answer);
/* Cancels what still runs. */
HYSPARSE_API int hysparse_answer_free(hysparse_answer* answer);

typedef struct {
  size_t size;
  int64_t context;         /* that the engine has */
  int64_t queued, running; /* choices, now */
  int64_t page_size, pages, pages_used, pages_cached;
  int64_t slots, slots_running, slots_snapshots;  /* of rings */
  int64_t submitted, finished, cancelled, failed; /* requests, since the start */
  int64_t prompt_tokens, cached_tokens, generated_tokens, drafted, accepted;
  int64_t cache_hits, preemptions, steps;
  double step_seconds;
  int32_t healthy; /* a step ended within the last minute, or there is nothing to do; and nothing broke */
} hysparse_engine_stats;
HYSPARSE_API int hysparse_engine_get_stats(hysparse_engine* engine, hysparse_engine_stats* stats);

/* ---- perplexity */

typedef int (*hysparse_progress_callback)(void* user, int64_t scored_tokens);

typedef struct {
  size_t size;
  int64_t window;                      /* tokens the model sees at once; 0: the context, at most 1024 */
  int64_t stride;                      /* tokens between windows; 0: half a window */
  int64_t batch;                       /* windows a forward; 0: what fits in 2048 tokens */
  int64_t max_tokens;                  /* stop after so many scored tokens; 0: score everything */
  hysparse_progress_callback progress; /* optional, between forwards; anything but 0: HYSPARSE_CANCELLED */
  void* progress_user;
} hysparse_perplexity_options;
#define HYSPARSE_PERPLEXITY_OPTIONS_INIT \
  { sizeof(hysparse_perplexity_options), 0, 0, 0, 0, NULL, NULL }

typedef struct {
  size_t size;
  int64_t documents, tokens, bytes; /* scored tokens, and the bytes of text they stand for */
  double nats;                      /* sum over the scored tokens */
  double nats_per_token, standard_error, perplexity;
  double bits_per_byte, bits_per_byte_standard_error; /* NaN without a tokenizer */
} hysparse_perplexity_result;
/* Every token after the first of a document is scored once, with at least window - stride tokens of context.
 * Document i is ids[starts[i]] .. ids[starts[i + 1] - 1]; `starts` holds documents + 1 places, from 0 up. */
HYSPARSE_API int hysparse_perplexity(hysparse_model* model, const int32_t* ids, const size_t* starts,
                                     size_t documents, const hysparse_perplexity_options* options,
                                     hysparse_perplexity_result* result);

/* ---- plan */

typedef struct {
  size_t size;
  int64_t context;        /* tokens a sequence; must be set */
  int64_t batch;          /* sequences */
  const char* dtype;      /* of the KV cache and of training: "bf16" or "f32"; NULL: "bf16" */
  const char* const* set; /* set_count texts "key=value" over the config */
  size_t set_count;
} hysparse_plan_options;
#define HYSPARSE_PLAN_OPTIONS_INIT \
  { sizeof(hysparse_plan_options), 0, 1, NULL, NULL, 0 }

/* Parameters, KV cache, FLOPs and training memory of a config; no weights needed. `config`: the JSON text of
 * a run file or config.json where it begins with '{', else the path of such a file or of a model directory.
 * `json`: what `hysparse plan --json` prints; free with hysparse_free. */
HYSPARSE_API int hysparse_plan(const char* config, const hysparse_plan_options* options, char** json);

#ifdef __cplusplus
}
#endif
#endif
