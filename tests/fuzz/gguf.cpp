// The reader of GGUF files: metadata, tensors and their numbers, and the model and tokenizer made of them.
#include <algorithm>
#include <cstring>
#include <memory>

#include "io/gguf_detail.h"
#include "model/gguf_model.h"
#include "target.h"
#include "tokenizer/tokenizer_gguf.h"
#include "unit/io/gguf_bytes.h"

namespace hysparse::fuzz {
namespace {

using namespace gguf_detail;
using namespace gguf_bytes;

// A llama of one layer and a tokenizer of six tokens.
std::string model(const std::string& arch, const std::string& pre) {
  using T = GgufType;
  std::string keys, tensors;
  uint64_t key_count = 0, tensor_count = 0, at = 0;
  const auto add_text = [&](const std::string& k, const std::string& v) {
    keys += key(k, T::text) + text(v);
    ++key_count;
  };
  const auto number = [&](const std::string& k, uint32_t v) {
    keys += key(k, T::u32) + le(v);
    ++key_count;
  };
  const auto texts = [&](const std::string& k, const std::vector<std::string>& values) {
    keys += array(k, T::text, values.size());
    for (const std::string& v : values) keys += text(v);
    ++key_count;
  };
  add_text("general.architecture", arch);
  for (const auto& [k, v] : {std::pair("block_count", 1u),
                             {"context_length", 16u},
                             {"embedding_length", 8u},
                             {"feed_forward_length", 8u},
                             {"attention.head_count", 1u}})
    number(arch + "." + k, v);
  keys += key(arch + ".attention.layer_norm_rms_epsilon", T::f32) + le(1e-5f);
  ++key_count;
  add_text("tokenizer.ggml.model", "gpt2");
  add_text("tokenizer.ggml.pre", pre);
  texts("tokenizer.ggml.tokens", {"a", "b", "ab", "<e>", "<u>", "[PAD5]"});
  texts("tokenizer.ggml.merges", {"a b"});
  keys += array("tokenizer.ggml.token_type", T::i32, 6);
  for (const int32_t t : {1, 1, 1, 3, 4, 5}) keys += le(t);
  ++key_count;
  number("tokenizer.ggml.eos_token_id", 3);
  const auto tensor_of = [&](const std::string& name, const std::vector<uint64_t>& dims) {
    tensors += tensor(name, dims, 0, at);
    uint64_t bytes = 4;
    for (const uint64_t d : dims) bytes *= d;
    at += (bytes + 31) / 32 * 32;
    ++tensor_count;
  };
  tensor_of("token_embd.weight", {8, 6});
  tensor_of("output_norm.weight", {8});
  for (const char* name : {"attn_norm", "ffn_norm"}) tensor_of(std::string("blk.0.") + name + ".weight", {8});
  for (const char* name : {"attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down"})
    tensor_of(std::string("blk.0.") + name + ".weight", {8, 8});
  return file(tensor_count, key_count, keys + tensors, at);
}

}  // namespace

bool run_input(std::string_view input) {
  // An exact copy on the heap, so that a sanitizer sees a read past the end.
  const std::unique_ptr<std::byte[]> copy(new std::byte[input.size()]);
  std::copy_n(reinterpret_cast<const std::byte*>(input.data()), input.size(), copy.get());
  Header header;
  try {
    header = parse_header({copy.get(), input.size()}, "fuzz");
  } catch (const Error& e) {
    require(e.kind() == ErrorKind::input, "a bad file is the input's fault");
    require(std::strlen(e.what()) < 2000, "messages are short");
    return false;
  }
  require(header.data_begin <= input.size(), "the data section begins inside the file");
  const std::byte* const end = copy.get() + input.size();
  for (const auto& [name, v] : header.metadata) {
    require(v.raw.empty() || (v.raw.data() >= copy.get() && v.raw.data() + v.raw.size() <= end),
            "numbers lie inside the file");
    require(v.texts.empty() || v.texts.size() == v.count, "a text an element");
    double sum = 0;
    for (size_t i = 0; i <= v.count; ++i)
      sum += v.real(i).value_or(0) + static_cast<double>(v.integer(i).value_or(0));
    for (const std::string_view t : v.texts) sum += static_cast<double>(t.size());
    require(!v.describe().empty() && !(sum < 0 && sum > 0), "values can be read");
  }
  std::vector<int> owners(input.size() - header.data_begin);
  for (const GgufTensor& t : header.tensors) {
    require(t.begin < t.end && t.end <= owners.size(), "tensors lie inside the data section");
    int64_t count = 1;
    for (const int64_t d : t.shape)
      require(d > 0 && !__builtin_mul_overflow(count, d, &count), "shapes multiply");
    const int64_t block = block_size(t.dtype);
    require(t.shape.back() % block == 0, "rows are whole blocks");
    require(static_cast<size_t>(count / block) * block_bytes(t.dtype) == t.end - t.begin,
            "shape and bytes agree");
    for (size_t i = t.begin; i < t.end; ++i) require(owners[i]++ == 0, "no overlap");
    if (count > 4096) continue;
    std::vector<float> values(static_cast<size_t>(count));
    decode(t.dtype, copy.get() + header.data_begin + t.begin, values.data(), values.size());
  }
  const GgufFile file(std::span<const std::byte>(copy.get(), input.size()), "fuzz");
  accepted([&] {
    for (const TensorSource& t : gguf_tensors(file, gguf_config(file))) {
      std::vector<float> row(static_cast<size_t>(t.row_size()));
      for (int64_t i = 0; i < t.rows(); ++i) t.read(i, 1, row.data());
    }
  });
  accepted([&] { tokenizer_from_gguf(file); });
  return true;
}

std::vector<std::string> seeds() {
  using T = GgufType;
  const std::string numbers = key("a", T::u8) + le(uint8_t(1)) + key("b", T::i64) + le(int64_t(-5)) +
                              key("c", T::f32) + le(1.5f) + key("d", T::boolean) + le(uint8_t(1));
  const std::string arrays = array("e", T::text, 2) + text("x") + text("") + array("f", T::u16, 3) +
                             le(uint16_t(1)) + le(uint16_t(2)) + le(uint16_t(3));
  return {model("llama", "gpt-2"),
          model("qwen2", "qwen2"),
          file(0, 0, "", 0),
          file(0, 4, numbers, 0),
          file(1, 2, arrays + tensor("t", {4, 2}, 0, 0), 32),
          file(2, 1,
               key("general.architecture", T::text) + text("llama") + tensor("q", {32, 2}, 8, 0) +
                   tensor("p", {64}, 2, 96),
               160),
          file(2, 1,
               key("general.alignment", T::u32) + le(uint32_t(8)) + tensor("h", {3, 1, 2}, 1, 0) +
                   tensor("m", {32}, 3, 16),
               36, 8)};
}

std::vector<std::string> dictionary() {
  return {le(uint64_t(0)),
          le(uint64_t(1)),
          le(uint64_t(32)),
          le(uint64_t(1) << 32),
          le(uint64_t(1) << 63),
          le(UINT64_MAX),
          le(uint64_t(INT64_MAX)),
          le(uint32_t(0)),
          le(uint32_t(2)),
          le(uint32_t(8)),
          le(uint32_t(9)),
          le(uint32_t(12)),
          le(uint32_t(30)),
          "GGUF",
          text("general.alignment") + le(uint32_t(4)) + le(uint32_t(0)),
          text("t"),
          std::string(31, '\0')};
}

}  // namespace hysparse::fuzz
