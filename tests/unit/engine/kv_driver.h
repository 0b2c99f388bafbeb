// A cache driven beside a plain copy of everything it was ever given.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <memory>
#include <vector>

#include "base/error.h"
#include "base/rng.h"
#include "engine/paged_kv.h"
#include "kernels/cpu/cpu.h"
#include "tiny.h"

namespace hysparse::tests {

class KvDriver {
 public:
  // operations: rows go to their places by operations, as on a device.
  KvDriver(ModelConfig config, PagedKvOptions options, bool operations = false)
      : config_(std::move(config)), options_(options) {
    config_.finalize("test");
    plan_ = build_layer_plan(config_);
    options_.poison = std::nan("");
    kv_ = std::make_unique<PagedKv>(config_, plan_, options_, host_memory(),
                                    operations || in_8_bits() ? &rt_ : nullptr);
    history_.resize(size_t(options_.max_sequences));
  }
  PagedKv& kv() { return *kv_; }
  const ModelConfig& config() const { return config_; }
  const LayerPlan& plan() const { return plan_; }
  int64_t length(int id) const { return int64_t(history_[size_t(id)].size()); }

  // One step of counts[i] new tokens for ids[i]; every view is checked against the copy.
  // kept: of each sequence's new tokens, so many are committed; empty: all.
  void step(const std::vector<int>& ids, const std::vector<int64_t>& counts, bool commit = true,
            const std::vector<int64_t>& kept = {}) {
    RaggedBatch batch;
    std::vector<std::vector<uint64_t>> next;
    for (size_t s = 0; s < ids.size(); ++s) {
      batch.add_sequence(counts[s], length(ids[s]));
      next.push_back(history_[size_t(ids[s])]);
      for (int64_t i = 0; i < counts[s]; ++i) next.back().push_back(++stamp_);
    }
    kv_->begin_step(ids, batch, !kept.empty());
    for (size_t layer = 0; layer < plan_.size(); ++layer) {
      const LayerPlanEntry& entry = plan_[layer];
      if (entry.kind != LayerKind::full && !entry.own_window_kv) continue;
      // Odd layers hand in strided views, as a fused q/k/v projection would.
      const int64_t extra = layer % 2 ? 3 : 0, heads = config_.kv_heads();
      Tensor k(options_.dtype, {batch.tokens(), heads + extra, config_.d()});
      Tensor v(options_.dtype, {batch.tokens(), heads, config_.dv() + 8 * extra});
      TensorView kv_k = k.view(), kv_v = v.view();
      kv_k.shape[1] = heads;
      kv_v.shape[2] = config_.dv();
      for (size_t s = 0; s < ids.size(); ++s)
        for (int64_t i = 0; i < counts[s]; ++i)
          for (int64_t h = 0; h < heads; ++h) {
            const uint64_t stamp = next[s][size_t(length(ids[s]) + i)];
            for (int64_t e = 0; e < config_.d(); ++e)
              put(kv_k, batch.cu_q[s] + i, h, e, value(layer, stamp, h, e, 0));
            for (int64_t e = 0; e < config_.dv(); ++e)
              put(kv_v, batch.cu_q[s] + i, h, e, value(layer, stamp, h, e, 1));
          }
      const KvView view = kv_->append(int(layer), batch, kv_k, kv_v);
      for (size_t s = 0; s < ids.size(); ++s) {
        // The first query of the step sees furthest back.
        const int64_t begin =
            entry.kind == LayerKind::full ? 0 : std::max<int64_t>(0, length(ids[s]) - entry.window + 1);
        for (int64_t p = begin; p < batch.kv_len(int64_t(s)); ++p)
          expect_row(view, batch, int64_t(s), p, layer, next[s]);
      }
    }
    if (commit) {
      if (kept.empty())
        kv_->commit();
      else
        kv_->commit(kept);
      for (size_t s = 0; s < ids.size(); ++s) {
        if (!kept.empty()) next[s].resize(size_t(length(ids[s]) + kept[s]));
        history_[size_t(ids[s])] = next[s];
      }
    } else {
      kv_->discard();
    }
    check();
  }
  bool truncate(int id, int64_t length) {
    const bool kept = kv_->truncate(id, length);
    if (kept) history_[size_t(id)].resize(size_t(length));
    check();
    return kept;
  }

  // What a prefix cache does: holds a sequence's pages and a copy of its rings.
  struct Held {
    std::vector<uint64_t> history;
    std::vector<int32_t> pages;
    int32_t slot = -1;
  };
  void hold(int id) {
    Held h{history_[size_t(id)], {}, -1};
    const auto pages = kv_->pages(id);
    h.pages.assign(pages.begin(), pages.begin() + kv_->pages_for(length(id)));
    for (const int32_t page : h.pages) kv_->hold_page(page);
    if (kv_->has_rings()) h.slot = kv_->copy_rings(id);
    held.push_back(std::move(h));
    check();
  }
  void drop(size_t index) {
    for (const int32_t page : held[index].pages) kv_->drop_page(page);
    if (held[index].slot >= 0) kv_->drop_slot(held[index].slot);
    held.erase(held.begin() + std::ptrdiff_t(index));
    check();
  }
  // Into the empty sequence `id`, at the held length or one token less.
  void attach(size_t index, int id, int64_t length) {
    const Held& h = held[index];
    kv_->attach(id, std::span(h.pages).first(size_t(kv_->pages_for(length))), length, h.slot,
                int64_t(h.history.size()));
    history_[size_t(id)].assign(h.history.begin(), h.history.begin() + length);
    check();
  }
  void fork(int from, int to) {
    kv_->fork(from, to);
    history_[size_t(to)] = history_[size_t(from)];
    check();
  }
  void move_out(int id) {
    EXPECT_EQ(kv_->image_bytes(id),
              length(id) * plan_bytes().per_token + (length(id) > 0 ? plan_bytes().rings : 0));
    images[id] = {kv_->move_out(id), std::exchange(history_[size_t(id)], {})};
    check();
  }
  void move_in(int from, int to) {
    kv_->move_in(to, images.at(from).first);
    history_[size_t(to)] = images.at(from).second;
    images.erase(from);
    check();
  }
  KvBytes plan_bytes() const {
    return kv_bytes(config_, plan_, int(size_of(options_.dtype)), options_.kv_dtype);
  }
  bool in_8_bits() const { return options_.kv_dtype != KvDtype::compute; }
  std::vector<Held> held;
  std::map<int, std::pair<KvImage, std::vector<uint64_t>>> images;

  void check() {
    std::vector<int32_t> pages, slots;
    for (const Held& h : held) {
      pages.insert(pages.end(), h.pages.begin(), h.pages.end());
      if (h.slot >= 0) slots.push_back(h.slot);
    }
    kv_->check(pages, slots);
    for (size_t id = 0; id < history_.size(); ++id) ASSERT_EQ(kv_->length(int(id)), length(int(id)));
  }

 private:
  ThreadPool pool_{1};
  Arena scratch_;
  Runtime rt_{pool_, scratch_, cpu_ops(), host_memory()};
  // Of pages in 8 bits: numbers that the codes have, under a largest one that makes the scale 1.
  double value(size_t layer, uint64_t stamp, int64_t head, int64_t element, int which) const {
    const uint64_t h = hash_words({layer, stamp, uint64_t(head), uint64_t(element), uint64_t(which)});
    if (!in_8_bits() || plan_[layer].kind != LayerKind::full) return double(h % 251);
    const bool int8 = options_.kv_dtype == KvDtype::int8;
    if (element == 1) return int8 ? 127 : 448;
    return double(h % (int8 ? 127 : 16));
  }
  double get(const TensorView& t, int64_t offset) const {
    switch (t.dtype) {
      case DType::i8:
        return t.as<int8_t>()[offset];
      case DType::f8:
        return double(float(t.as<f8>()[offset]));
      case DType::f64:
        return t.as<double>()[offset];
      case DType::bf16:
        return double(float(t.as<bf16>()[offset]));
      default:
        return double(t.as<float>()[offset]);
    }
  }
  void put(const TensorView& t, int64_t row, int64_t head, int64_t element, double x) {
    const int64_t offset = row * t.stride[0] + head * t.stride[1] + element;
    if (t.dtype == DType::f64)
      t.as<double>()[offset] = x;
    else if (t.dtype == DType::bf16)
      t.as<bf16>()[offset] = bf16(float(x));
    else
      t.as<float>()[offset] = float(x);
  }
  void expect_row(const KvView& view, const RaggedBatch& batch, int64_t s, int64_t p, size_t layer,
                  const std::vector<uint64_t>& stamps) {
    const KvView::Row row = view.row(batch, s, p);
    const auto scale = [&](int64_t h, int which) {
      if (!view.in_8_bits()) return 1.0;
      const int32_t page = view.page_table[s * view.page_table_stride + p / view.page_size];
      return double(float(view.scales.at(page).at(p % view.page_size).at(h).as<bf16>()[which]));
    };
    for (int64_t h = 0; h < config_.kv_heads(); ++h)
      for (int64_t e : {int64_t(0), config_.d() - 1}) {
        ASSERT_EQ(scale(h, 0) * get(*row.k, row.k_offset + h * row.k_head_stride + e),
                  value(layer, stamps[size_t(p)], h, e, 0))
            << "K of layer " << layer << " position " << p;
        if (e >= config_.dv()) continue;
        ASSERT_EQ(scale(h, 1) * get(*row.v, row.v_offset + h * row.v_head_stride + e),
                  value(layer, stamps[size_t(p)], h, e, 1))
            << "V of layer " << layer << " position " << p;
      }
  }

  ModelConfig config_;
  LayerPlan plan_;
  PagedKvOptions options_;
  std::unique_ptr<PagedKv> kv_;
  std::vector<std::vector<uint64_t>> history_;
  uint64_t stamp_ = 0;
};

inline KvDtype kv_dtype_of(uint64_t seed) {
  constexpr KvDtype kAll[] = {KvDtype::compute, KvDtype::int8, KvDtype::fp8};
  return kAll[seed % 3];
}
inline PagedKvOptions kv_options(int64_t tokens, int64_t sequences = 1, int64_t page_size = 0) {
  PagedKvOptions o;
  o.max_tokens = tokens;
  o.max_sequences = sequences;
  o.page_size = page_size;
  return o;
}

}  // namespace hysparse::tests
