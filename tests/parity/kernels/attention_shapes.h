// The shapes that attention is tested on: spec/kernels lengths, head ratios and sizes, ragged batches, KV
// kinds.
#pragma once

#include "parity/kernels/attention_case.h"

namespace hysparse::test {

struct HeadShape {
  int64_t hq, hkv, d, dv;
};

inline const std::vector<int64_t>& lengths() {
  static const std::vector<int64_t> list = {1, 2, 15, 16, 17, 63, 64, 65, 127, 128, 129, 191, 193, 300};
  return list;
}
// R 1, 2, 3, 4, 7, 8, 16; every head size of the product, and odd ones for the slow path.
inline const std::vector<HeadShape>& head_shapes() {
  static const std::vector<HeadShape> list = {
      {4, 2, 32, 32},   {2, 2, 64, 64},   {7, 1, 72, 72},  {4, 1, 80, 80},  {8, 1, 96, 96}, {4, 2, 128, 128},
      {3, 1, 192, 128}, {2, 1, 256, 256}, {16, 1, 64, 64}, {32, 2, 16, 16}, {6, 2, 8, 40},  {14, 2, 24, 8},
      {4, 4, 48, 48},   {28, 4, 32, 32},  {1, 1, 128, 64}, {8, 2, 64, 128}};
  return list;
}
inline const std::vector<Sequence>& ragged() {
  static const std::vector<Sequence> list = {{5, 60}, {1, 127}, {64, 0}, {3, 130}, {1, 0}, {17, 64}, {1, 64}};
  return list;
}

// Every length once with the head shapes in turn, then every head shape on a ragged batch with a past;
// `kinds` are cycled through, gaps every third time. `every` > 1 thins the list (backends that are not main).
inline std::vector<AttentionShape> attention_shapes(const std::vector<KvView::Kind>& kinds, bool with_past,
                                                    size_t every = 1) {
  std::vector<AttentionShape> all;
  const auto add = [&](std::vector<Sequence> sequences, const HeadShape& h) {
    const size_t i = all.size();
    all.push_back({.sequences = std::move(sequences),
                   .hq = h.hq,
                   .hkv = h.hkv,
                   .d = h.d,
                   .dv = h.dv,
                   .kind = kinds[i % kinds.size()],
                   .gaps = i % 3 == 2,
                   .seed = i + 1});
  };
  for (size_t i = 0; i < lengths().size(); ++i)
    add({{lengths()[i], 0}}, head_shapes()[(i * 5) % head_shapes().size()]);
  for (size_t i = 0; i < head_shapes().size(); ++i) {
    if (with_past)
      add(ragged(), head_shapes()[i]);
    else
      add({{33, 0}, {1, 0}, {70, 0}, {2, 0}}, head_shapes()[i]);
  }
  std::vector<AttentionShape> thin;
  for (size_t i = 0; i < all.size(); i += every) thin.push_back(all[i]);
  return thin;
}
inline size_t thinning(const Backend& backend) {
  return backend.main ? 1 : 7;  // 7 meets every kind, gap setting and most head shapes
}

inline const std::vector<KvView::Kind>& every_kind() {
  static const std::vector<KvView::Kind> list = {KvView::Kind::contiguous, KvView::Kind::paged,
                                                 KvView::Kind::ring};
  return list;
}

}  // namespace hysparse::test
