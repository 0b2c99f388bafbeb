/* The headers are C11, alone and together, and their initialisers are constant expressions. */
#include "hysparse/hysparse.h"

#include "hysparse/cuda.h"

static const hysparse_model_options model_options = HYSPARSE_MODEL_OPTIONS_INIT;
static const hysparse_generate_options generate_options = HYSPARSE_GENERATE_OPTIONS_INIT;
static const hysparse_perplexity_options perplexity_options = HYSPARSE_PERPLEXITY_OPTIONS_INIT;
static const hysparse_plan_options plan_options = HYSPARSE_PLAN_OPTIONS_INIT;

int options_from_c_are_sized(void);
int options_from_c_are_sized(void) {
  return model_options.size == sizeof model_options && generate_options.size == sizeof generate_options &&
         perplexity_options.size == sizeof perplexity_options && plan_options.size == sizeof plan_options &&
         generate_options.top_p == 1.0 && generate_options.chunk == 512 && plan_options.batch == 1;
}
