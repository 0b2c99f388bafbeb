#include "capi/guard.h"
#include "capi/objects.h"

namespace hysparse::capi {

std::shared_ptr<const Tokenizer> tokenizer_of(hysparse_tokenizer* handle) {
  return std::static_pointer_cast<const Tokenizer>(find_handle(HandleKind::tokenizer, handle));
}

namespace {

// No threads, no locks: a tokenizer outlives a fork.
hysparse_tokenizer* add(std::shared_ptr<const Tokenizer> tokenizer) {
  return static_cast<hysparse_tokenizer*>(add_handle(
      HandleKind::tokenizer, std::const_pointer_cast<Tokenizer>(std::move(tokenizer)), AfterFork::usable));
}

using Encode = std::vector<int32_t> (Tokenizer::*)(std::string_view, bool) const;
int encoded(hysparse_tokenizer* handle, const char* text, size_t bytes, int special, Encode encode,
            int32_t** ids, size_t* count) {
  return guarded([&] {
    const auto t = tokenizer_of(handle);
    array(text, bytes, "text");
    required(ids, "ids");
    required(count, "count");
    const std::vector<int32_t> out = ((*t).*encode)({text, bytes}, special != 0);
    *ids = static_cast<int32_t*>(copy_out(out.data(), out.size() * sizeof(int32_t)));
    *count = out.size();
    return HYSPARSE_OK;
  });
}

}  // namespace
}  // namespace hysparse::capi

using namespace hysparse;
using namespace hysparse::capi;

extern "C" {

int hysparse_tokenizer_load(const char* path, hysparse_tokenizer** out) {
  return guarded([&] {
    required(path, "path");
    required(out, "out");
    *out = add(std::make_shared<const Tokenizer>(Tokenizer::load(path)));
    return HYSPARSE_OK;
  });
}

int hysparse_model_tokenizer(hysparse_model* model, hysparse_tokenizer** out) {
  return guarded([&] {
    const auto m = model_of(model);
    required(out, "out");
    m->text.text();  // or says what is missing
    *out = add(m->text.tokenizer);
    return HYSPARSE_OK;
  });
}

int hysparse_tokenizer_free(hysparse_tokenizer* tokenizer) {
  return guarded([&] {
    free_handle(HandleKind::tokenizer, tokenizer);
    return HYSPARSE_OK;
  });
}

int hysparse_tokenizer_get_info(hysparse_tokenizer* tokenizer, hysparse_tokenizer_info* info) {
  return guarded([&] {
    const auto t = tokenizer_of(tokenizer);
    check_result(info, "tokenizer info");
    put_result(info, {0, t->vocab_size(), t->eos_id()});
    return HYSPARSE_OK;
  });
}

int hysparse_tokenizer_encode(hysparse_tokenizer* tokenizer, const char* text, size_t bytes, int special,
                              int32_t** ids, size_t* count) {
  return encoded(tokenizer, text, bytes, special, &Tokenizer::encode, ids, count);
}

int hysparse_tokenizer_encode_from_start(hysparse_tokenizer* tokenizer, const char* text, size_t bytes,
                                         int special, int32_t** ids, size_t* count) {
  return encoded(tokenizer, text, bytes, special, &Tokenizer::encode_from_start, ids, count);
}

int hysparse_tokenizer_decode(hysparse_tokenizer* tokenizer, const int32_t* ids, size_t count, int special,
                              char** text, size_t* bytes) {
  return guarded([&] {
    const auto t = tokenizer_of(tokenizer);
    array(ids, count, "ids");
    required(text, "text");
    required(bytes, "bytes");
    const std::string out = t->decode({ids, ids + count}, special != 0);
    *text = static_cast<char*>(copy_out(out.data(), out.size()));
    *bytes = out.size();
    return HYSPARSE_OK;
  });
}

}  // extern "C"
