// Writing, and reading a model directory back: complete or refused.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "base/rng.h"
#include "io/json_value.h"
#include "io/safetensors.h"
#include "support.h"

namespace hysparse {
namespace {

using namespace testing_io;
namespace fs = std::filesystem;

// Weights in the manner of a model: named, of several dtypes, with random values.
class Weights {
 public:
  explicit Weights(int layers, DType dtype = DType::f32) {
    add("model.embed_tokens.weight", {97, 64}, dtype);
    for (int i = 0; i < layers; ++i) {
      const std::string p = "model.layers." + std::to_string(i);
      add(p + ".self_attn.q_proj.weight", {64, 64}, dtype);
      add(p + ".self_attn.sinks", {3}, DType::f32);
      add(p + ".mlp.up_proj.weight", {96, 64}, dtype);
    }
    add("model.norm.weight", {63}, dtype);
  }
  const std::vector<NamedTensor>& list() const { return list_; }

 private:
  void add(const std::string& name, std::initializer_list<int64_t> shape, DType as) {
    storage_.emplace_back(DType::f32, shape);
    const TensorView& v = storage_.back();
    Rng rng(storage_.size());
    for (int64_t i = 0; i < v.numel(); ++i) v.as<float>()[i] = static_cast<float>(rng.normal());
    list_.push_back({name, v, as});
  }
  std::vector<Tensor> storage_;
  std::vector<NamedTensor> list_;
};

void expect_equal(const SafetensorsSet& set, const Weights& weights) {
  EXPECT_EQ(set.names().size(), weights.list().size());
  for (const NamedTensor& t : weights.list()) {
    ASSERT_TRUE(set.has(t.name)) << t.name;
    Tensor back(DType::f32, {t.tensor.dim(0), t.tensor.rank > 1 ? t.tensor.dim(1) : 1});
    const TensorView v = t.tensor.rank > 1 ? back.view() : back.view().reshape({t.tensor.dim(0)});
    set.read(t.name, v);
    for (int64_t i = 0; i < v.numel(); ++i) {
      const float want = t.tensor.as<float>()[i];
      ASSERT_EQ(v.as<float>()[i], t.as == DType::bf16 ? static_cast<float>(bf16(want)) : want)
          << t.name << " " << i;
    }
  }
}

TEST(WriteSafetensors, RoundTripsEveryDType) {
  const TempDir dir;
  const fs::path path = dir / "t.safetensors";
  std::vector<Tensor> storage;
  std::vector<NamedTensor> list;
  Rng rng(5);
  for (DType t : {DType::u8, DType::f64, DType::bf16, DType::i64, DType::f32, DType::i32, DType::f16,
                  DType::i16, DType::i8}) {
    storage.emplace_back(t, std::initializer_list<int64_t>{3, 5});
    const TensorView v = storage.back();
    for (size_t i = 0; i < v.bytes(); ++i)
      static_cast<uint8_t*>(v.data)[i] = static_cast<uint8_t>(rng.below(100));
    list.push_back({"t." + std::string(name_of(t)), v, t});
  }
  storage.emplace_back(DType::f32, std::initializer_list<int64_t>{0, 7});
  list.push_back({"empty", storage.back(), DType::f32});
  storage.emplace_back(DType::f32, std::initializer_list<int64_t>{});
  storage.back().view().as<float>()[0] = 2.5f;
  list.push_back({"sc\"al\\ar \xc3\xa9", storage.back(), DType::f64});
  write_safetensors(path, list, {{"step", "3"}, {"a", "b\n"}});

  const SafetensorsFile f(path);
  EXPECT_EQ(f.metadata(), (std::map<std::string, std::string>{{"a", "b\n"}, {"step", "3"}}));
  ASSERT_EQ(f.entries().size(), list.size());
  for (const NamedTensor& t : list) {
    const SafetensorsEntry& e = f.entry(t.name);
    EXPECT_EQ(e.shape, std::vector<int64_t>(t.tensor.shape.begin(), t.tensor.shape.begin() + t.tensor.rank));
    // the data section is aligned to 8, and each tensor in it to its element
    EXPECT_EQ(reinterpret_cast<uintptr_t>(f.data(e)) % size_of(t.as), 0u) << t.name;
    if (t.as != t.tensor.dtype) continue;
    Tensor back(t.tensor.dtype, {t.tensor.dim(0), t.tensor.dim(1)});
    f.read(t.name, back);
    EXPECT_EQ(std::memcmp(back.view().data, t.tensor.data, t.tensor.bytes()), 0) << t.name;
  }
  Tensor scalar(DType::f64, {});
  f.read("sc\"al\\ar \xc3\xa9", scalar);
  EXPECT_EQ(scalar.view().as<double>()[0], 2.5);
}

TEST(WriteSafetensors, ConvertsOnTheWayOut) {
  const TempDir dir;
  constexpr int64_t kCount = 300001;  // several pieces
  Tensor x(DType::f64, {kCount});
  Rng rng(6);
  for (int64_t i = 0; i < kCount; ++i) x.view().as<double>()[i] = rng.normal();
  write_safetensors(dir / "x", {{"b", x, DType::bf16}, {"f", x, DType::f32}});
  const SafetensorsFile f(dir / "x");
  Tensor b(DType::f64, {kCount}), s(DType::f64, {kCount});
  f.read("b", b);
  f.read("f", s);
  for (int64_t i = 0; i < kCount; ++i) {
    const double want = x.view().as<double>()[i];
    ASSERT_LE(std::abs(b.view().as<double>()[i] - want), std::abs(want) * 0x1p-8);
    ASSERT_EQ(s.view().as<double>()[i], static_cast<double>(static_cast<float>(want)));
  }
}

// The bytes are the format's, and the same for the same arguments.
TEST(WriteSafetensors, PinnedBytes) {
  const TempDir dir;
  Tensor a(DType::u8, {3}), b(DType::f32, {1, 1});
  for (int i = 0; i < 3; ++i) a.view().as<uint8_t>()[i] = static_cast<uint8_t>('x' + i);
  b.view().as<float>()[0] = 1.0f;
  write_safetensors(dir / "t", {{"a", a, DType::u8}, {"b", b, DType::f32}}, {{"k", "v"}});
  std::string header =
      R"({"__metadata__":{"k":"v"},"a":{"dtype":"U8","shape":[3],"data_offsets":[4,7]},"b":{"dtype":"F32","shape":[1,1],"data_offsets":[0,4]}})";
  header.append((8 - header.size() % 8) % 8, ' ');
  std::string want(8, '\0');
  want[0] = static_cast<char>(header.size());
  want += header + std::string("\0\0\x80\x3f", 4) + "xyz";
  EXPECT_EQ(get(dir / "t"), want);
  write_safetensors(dir / "none", {});
  EXPECT_EQ(get(dir / "none"), std::string("\x08\0\0\0\0\0\0\0{}      ", 16));
}

TEST(WriteSafetensors, RefusesWhatCannotBeRead) {
  const TempDir dir;
  Tensor a(DType::f32, {4, 4});
  TensorView strided = a;
  strided.shape[1] = 2;
  EXPECT_THROW(write_safetensors(dir / "t", {{"a", strided, DType::f32}}), Error);
  EXPECT_THROW(write_safetensors(dir / "t", {{"a", a, DType::f32}, {"a", a, DType::f32}}), Error);
  EXPECT_THROW(write_safetensors(dir / "t", {{"__metadata__", a, DType::f32}}), Error);
  EXPECT_THROW(write_safetensors(dir / "t", {{"a", a, DType::i32}}), Error);
  EXPECT_THROW(write_safetensors(dir / "t", {{"a\xff", a, DType::f32}}), Error);
  EXPECT_TRUE(dir.entries().empty());
}

TEST(ReadSafetensors, TheViewMustFit) {
  const TempDir dir;
  Tensor a(DType::f32, {4, 6}), n(DType::i32, {2});
  write_safetensors(dir / "t", {{"a", a, DType::f32}, {"n", n, DType::i32}});
  const SafetensorsFile f(dir / "t");
  const std::string path = (dir / "t").string();
  for (const auto& shape : {std::vector<int64_t>{6, 4}, {24}, {4, 6, 1}, {4, 5}}) {
    Tensor dst = shape.size() == 1   ? Tensor(DType::f32, {shape[0]})
                 : shape.size() == 2 ? Tensor(DType::f32, {shape[0], shape[1]})
                                     : Tensor(DType::f32, {shape[0], shape[1], shape[2]});
    expect_input_error({path, "tensor \"a\"", "F32[4, 6]"}, [&] { f.read("a", dst); });
  }
  Tensor wrong(DType::i64, {4, 6}), real(DType::f32, {2});
  expect_input_error({path, "tensor \"a\"", "stored as F32", "i64"}, [&] { f.read("a", wrong); });
  expect_input_error({path, "tensor \"n\"", "stored as I32", "f32"}, [&] { f.read("n", real); });
  TensorView strided(nullptr, DType::f32, {4, 6});
  strided.stride[0] = 12;
  EXPECT_THROW(f.read("a", strided), Error);
}

class SafetensorsSetTest : public ::testing::Test {
 protected:
  // 3 shards, as BC-27 has them.
  void write_shards() {
    write_safetensors_set(dir_.path(), weights_.list(), 70'000);
    ASSERT_EQ(dir_.entries(), (std::vector<std::string>{
                                  "model-00001-of-00003.safetensors", "model-00002-of-00003.safetensors",
                                  "model-00003-of-00003.safetensors", "model.safetensors.index.json"}));
    for (int s = 1; s <= 3; ++s) {
      names_.emplace_back();
      const SafetensorsFile file(shard(s));
      for (const auto& e : file.entries()) names_.back().push_back(e.first);
      ASSERT_GE(names_.back().size(), 2u);
    }
  }
  fs::path shard(int s) const { return dir_ / ("model-0000" + std::to_string(s) + "-of-00003.safetensors"); }
  fs::path index() const { return dir_ / "model.safetensors.index.json"; }
  void refused(std::vector<std::string> parts) {
    expect_input_error(parts, [&] { SafetensorsSet set(dir_.path()); });
  }
  // Refused, naming the shard and every tensor of it.
  void refused_without_shard(int s, std::vector<std::string> parts) {
    parts.push_back(shard(s).string());
    parts.push_back(std::to_string(names_[size_t(s) - 1].size()) + " of " +
                    std::to_string(weights_.list().size()) + " tensors are missing");
    for (const auto& n : names_[size_t(s) - 1]) parts.push_back(fmt::format("\"{}\"", n));
    refused(parts);
  }
  void edit_index(const std::function<void(Json&)>& edit) {
    Json j = read_json_file(index());
    edit(j);
    put(index(), dump_json(j));
  }
  TempDir dir_;
  Weights weights_{4};
  std::vector<std::vector<std::string>> names_;
};

TEST_F(SafetensorsSetTest, SingleFileAndShardsReadBack) {
  const TempDir single;
  const Weights half(2, DType::bf16);
  write_safetensors_set(single.path(), half.list());
  EXPECT_EQ(single.entries(), std::vector<std::string>{"model.safetensors"});
  expect_equal(SafetensorsSet(single.path()), half);
  expect_equal(SafetensorsSet(single / "model.safetensors"), half);  // a file is taken too
  EXPECT_TRUE(SafetensorsSet(single.path()).notes().empty());
  write_shards();
  const SafetensorsSet set(dir_.path());
  expect_equal(set, weights_);
  EXPECT_TRUE(set.notes().empty());
  EXPECT_EQ(set.entry("model.norm.weight").dtype, "F32");
  expect_input_error({dir_.path().string(), "model.norm.wieght", "model.norm.weight"},
                     [&] { set.entry("model.norm.wieght"); });
  size_t total = 0;
  for (const auto& t : weights_.list()) total += t.tensor.bytes();
  EXPECT_EQ(read_json_file(index())["metadata"]["total_size"].get<size_t>(), total);
}

TEST_F(SafetensorsSetTest, WritingAgainRemovesTheEarlierSet) {
  write_shards();
  put(dir_ / "config.json", "{}");
  put(dir_ / "extra.safetensors", "mine");
  write_safetensors_set(dir_.path(), weights_.list());
  EXPECT_EQ(dir_.entries(),
            (std::vector<std::string>{"config.json", "extra.safetensors", "model.safetensors"}));
  const SafetensorsSet set(dir_.path());
  expect_equal(set, weights_);
  write_safetensors_set(dir_.path(), weights_.list(), 1);  // a shard a tensor
  EXPECT_EQ(dir_.entries().size(), 2 + weights_.list().size() + 1);
  expect_equal(SafetensorsSet(dir_.path()), weights_);
}

TEST_F(SafetensorsSetTest, BC27_AShardIsGone) {
  for (int s : {1, 2, 3}) {
    names_.clear();
    write_shards();
    fs::remove(shard(s));
    refused_without_shard(s, {"No such file"});
  }
}

TEST_F(SafetensorsSetTest, BC27_AShardIsShort) {
  write_shards();
  const std::string whole = get(shard(2));
  for (size_t size : {whole.size() - 1, whole.size() / 2, size_t(100), size_t(8), size_t(7), size_t(0)}) {
    put(shard(2), whole.substr(0, size));
    refused_without_shard(2, {});
  }
  put(shard(2), whole + "x");
  refused_without_shard(2, {"1 bytes after the last tensor"});
  put(shard(2), whole);
  // two at once: both are named, and the tensors of both
  fs::remove(shard(1));
  put(shard(3), "");
  std::vector<std::string> parts = {shard(1).string(), shard(3).string(), "No such file", "is empty"};
  for (int shard_index : {0, 2})
    for (const auto& n : names_[size_t(shard_index)]) parts.push_back(fmt::format("\"{}\"", n));
  refused(parts);
}

TEST_F(SafetensorsSetTest, BC27_TheIndexListsWhatItsShardLacks) {
  write_shards();
  edit_index([](Json& j) {
    j["weight_map"]["model.phantom.weight"] = "model-00002-of-00003.safetensors";
    j["weight_map"]["model.ghost.weight"] = "model-00003-of-00003.safetensors";
  });
  refused({index().string(), "2 of", "\"model.phantom.weight\"", "\"model.ghost.weight\"", shard(2).string(),
           shard(3).string()});
}

TEST_F(SafetensorsSetTest, BC27_AShardHoldsWhatTheIndexDoesNotList) {
  write_shards();
  const std::string name = names_[1][0];
  edit_index([&](Json& j) { j["weight_map"].erase(name); });
  refused({index().string(), "does not list", "\"" + name + "\""});
}

TEST_F(SafetensorsSetTest, BC27_AStrayShardIsNotedAndIgnored) {
  write_shards();
  fs::copy_file(shard(1), dir_ / "model-00004-of-00004.safetensors");
  put(dir_ / "consolidated.safetensors", "not even a file of its kind");
  const SafetensorsSet set(dir_.path());
  expect_equal(set, weights_);
  ASSERT_EQ(set.notes().size(), 2u);
  EXPECT_NE(set.notes()[0].find("consolidated.safetensors"), std::string::npos);
  EXPECT_NE(set.notes()[1].find("model-00004-of-00004.safetensors"), std::string::npos);
}

TEST_F(SafetensorsSetTest, BC27_OneTensorInTwoShards) {
  write_shards();
  // shard 3 again, with a tensor of shard 1 beside its own
  std::vector<NamedTensor> list;
  for (const auto& t : weights_.list())
    if (std::count(names_[2].begin(), names_[2].end(), t.name) || t.name == names_[0][0]) list.push_back(t);
  write_safetensors(shard(3), list);
  refused({"\"" + names_[0][0] + "\"", "two shards", "model-00001-of-00003.safetensors",
           "model-00003-of-00003.safetensors"});
}

TEST_F(SafetensorsSetTest, BC27_AZeroLengthShard) {
  write_shards();
  put(shard(3), "");
  refused_without_shard(3, {"is empty"});
}

TEST_F(SafetensorsSetTest, ManyMissingNamesAreCounted) {
  write_shards();
  edit_index([](Json& j) {
    for (int i = 0; i < 5000; ++i)
      j["weight_map"]["phantom." + std::to_string(i)] = "model-00001-of-00003.safetensors";
  });
  try {
    SafetensorsSet set(dir_.path());
    FAIL();
  } catch (const Error& e) {
    const std::string what = e.what();
    EXPECT_NE(what.find("5000 of"), std::string::npos) << what.substr(0, 300);
    EXPECT_NE(what.find("and 4900 more"), std::string::npos);
    EXPECT_LT(what.size(), 10000u);
  }
}

TEST_F(SafetensorsSetTest, TheIndexMustStayInItsFolder) {
  write_shards();
  fs::create_directory(dir_ / "sub");
  fs::rename(shard(1), dir_ / "sub/one.safetensors");
  const std::string original = get(index());
  const auto moved_to = [&](const std::string& to) {
    put(index(), original);
    edit_index([&](Json& j) {
      for (auto& item : j["weight_map"].items())
        if (item.value() == "model-00001-of-00003.safetensors") item.value() = to;
    });
  };
  moved_to("sub/one.safetensors");  // below is inside
  expect_equal(SafetensorsSet(dir_.path()), weights_);
  for (const std::string& to : {std::string("../one.safetensors"), (dir_ / "sub/one.safetensors").string(),
                                std::string("sub/../../x"), std::string(".."), std::string("."),
                                std::string(""), std::string("sub/"), std::string("/etc/passwd")}) {
    moved_to(to);
    refused({index().string(), "weight_map", "inside the model's folder"});
  }
}

TEST_F(SafetensorsSetTest, TheIndexMustBeOne) {
  write_shards();
  for (const auto& [content, part] : std::vector<std::pair<std::string, std::string>>{
           {"", "not valid JSON"},
           {"[]", "weight_map"},
           {"{}", "weight_map"},
           {"{\"weight_map\": []}", "weight_map"},
           {"{\"weight_map\": {}}", "empty"},
           {"{\"weight_map\": {\"a\": 1}}", "name of a file"},
           {"{\"weight_map\": {\"a\": \"x\", \"a\": \"y\"}}", "duplicate"}}) {
    put(index(), content);
    refused({index().string(), part});
  }
}

TEST_F(SafetensorsSetTest, DirectoriesWithoutAWholeSet) {
  refused({dir_.path().string(), "no weights"});
  expect_input_error({"none", "no such folder"}, [&] { SafetensorsSet set(dir_ / "none"); });
  write_shards();
  const std::string kept = get(index());
  fs::remove(index());
  refused({"index"});
  put(index(), kept);
  write_safetensors(dir_ / "model.safetensors", weights_.list());
  refused({"model.safetensors.index.json", "out of date"});
}

}  // namespace
}  // namespace hysparse
