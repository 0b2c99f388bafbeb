// What the demo found out, for people and as demo.json.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "kv_measure.h"
#include "train/loop.h"
#include "train/prepare.h"
#include "train/run_config.h"

namespace hysparse {

struct DemoModel {
  std::string attention;  // hysparse, full
  std::string model;      // its model directory
  TrainResult training;
};
struct DemoSample {
  std::string prompt, text;
};

struct DemoReport {
  RunConfig config;
  std::string out;  // as the user will find it
  int threads = 0;
  std::string kernels;
  std::vector<std::string> files;
  int64_t text_bytes = 0;
  int64_t vocab_size = 0;
  PrepareReport data;
  std::vector<DemoModel> models;  // the HySparse model, then its twin if it was trained
  std::vector<DemoSample> samples;
  std::vector<KvMeasured> kv, kv_full;  // same contexts
  double tokenizer_seconds = 0, prepare_seconds = 0, train_seconds = 0, total_seconds = 0;
  std::vector<std::string> commands;  // to try next
};

std::string demo_json(const DemoReport& report);
std::string kv_table(const DemoReport& report);
std::string curve_text(const DemoReport& report);

}  // namespace hysparse
