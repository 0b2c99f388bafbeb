/* Continues a prompt with an installed libhysparse: generate MODEL_DIR [PROMPT [MAX_NEW_TOKENS [SEED]]]
 *
 * With CMake:        cmake -B build -DCMAKE_PREFIX_PATH=PREFIX && cmake --build build
 * With pkg-config:   cc -std=c11 generate.c -o generate $(pkg-config --cflags --libs hysparse) */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <hysparse/hysparse.h>

static int fail(void) {
  fprintf(stderr, "error: %s\n", hysparse_last_error());
  return 1;
}

static int print(void* user, const char* text, size_t bytes) {
  (void)user;
  fwrite(text, 1, bytes, stdout);
  fflush(stdout);
  return 0; /* anything else would end the answer */
}

int main(int argc, char** argv) {
  if (argc < 2) {
    fprintf(stderr, "usage: generate MODEL_DIR [PROMPT [MAX_NEW_TOKENS [SEED]]]\n");
    return 2;
  }
  const char* prompt = argc > 2 ? argv[2] : "";
  hysparse_generate_options options = HYSPARSE_GENERATE_OPTIONS_INIT;
  if (argc > 3) options.max_new_tokens = strtoll(argv[3], NULL, 10);
  if (argc > 4) options.seed = strtoull(argv[4], NULL, 10);

  hysparse_model* model = NULL;
  if (hysparse_model_load(argv[1], NULL, &model) != HYSPARSE_OK) return fail();
  hysparse_model_info info = {.size = sizeof info};
  hysparse_generation* answer = NULL;
  int code = hysparse_model_get_info(model, &info);
  if (code == HYSPARSE_OK)
    code = hysparse_generate(model, prompt, strlen(prompt), &options, print, NULL, &answer);
  if (code == HYSPARSE_OK) {
    hysparse_generation_result result = {.size = sizeof result};
    code = hysparse_generation_get_result(answer, &result);
    printf("\n");
    if (code == HYSPARSE_OK)
      fprintf(stderr, "libhysparse %s, %lld parameters: %zu tokens, %.1f tokens/s\n", hysparse_version(),
              (long long)info.parameters, result.token_count,
              result.decode_seconds > 0 ? (double)result.token_count / result.decode_seconds : 0.0);
  }
  const int status = code == HYSPARSE_OK ? 0 : fail();
  hysparse_generation_free(answer);
  hysparse_model_free(model);
  return status;
}
