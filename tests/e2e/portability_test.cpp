// One binary on any machine: each level of SIMD gives the same answers, nothing outside the dispatched code
// asks for more than the baseline, and the limits of a container are kept.
#include <sched.h>

#include <cmath>
#include <fstream>
#include <sstream>

#include "e2e/support.h"
#include "io/safetensors.h"

namespace hysparse {
namespace {

using namespace e2e;

class Portability : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    root_ = new Folder(fast_place());
    make_small_run(*root_, R"({"steps": 4, "seq_len": 64, "lr": 0.003, "warmup_steps": 2, "decay_steps": 2,
        "eval_interval": 0, "checkpoint_interval": 0, "log_interval": 1})");
    expect_ok("init --config " + path("config.json") + " --tokenizer " + path("tok") + " --out " +
              path("model"));
    std::string ids = "[7";
    for (int i = 1; i < 150; ++i) ids += ", " + std::to_string((i * 37 + 11) % 300);
    write_text(path("ids.json"), ids + "]");
  }
  static void TearDownTestSuite() { delete root_; }
  static std::string path(const std::string& name) { return *root_ / name; }
  static std::string at(const std::string& level) { return "env HYSPARSE_CPU_LEVEL=" + level + " "; }

  // As the message about one that there is not lists them.
  static std::vector<std::string> levels() {
    const std::string said = run("bench kernels --config " + path("config.json"), at("none")).output;
    const std::string begin = "expected one of ";
    const size_t from = said.find(begin), to = said.find(", got", from);
    EXPECT_NE(from, std::string::npos) << said;
    std::vector<std::string> names;
    std::istringstream list(said.substr(from + begin.size(), to - from - begin.size()));
    for (std::string name; std::getline(list >> std::ws, name, ',');) names.push_back(name);
    return names;
  }
  static std::vector<float> logits(const std::string& level, const std::string& dtype) {
    return logits_with(at(level), dtype);
  }
  static std::vector<float> logits_with(const std::string& before, const std::string& dtype) {
    const Result r = run("logits --model " + path("model") + " --tokens " + path("ids.json") +
                             " --mode prefill --out " + path("logits.safetensors") + " --dtype " + dtype,
                         before);
    EXPECT_EQ(r.code, 0) << before << "\n" << r.output;
    const SafetensorsFile file{fs::path(path("logits.safetensors"))};
    const SafetensorsEntry& e = file.entry("logits");
    std::vector<float> out(static_cast<size_t>(e.shape[0] * e.shape[1]));
    file.read("logits", TensorView(out.data(), DType::f32, {e.shape[0], e.shape[1]}));
    return out;
  }
  static double difference(const std::vector<float>& a, const std::vector<float>& b) {
    double worst = 0, top = 0;
    for (size_t i = 0; i < a.size(); ++i) {
      worst = std::max(worst, std::abs(double(a[i]) - double(b[i])));
      top = std::max(top, std::abs(double(b[i])));
    }
    return worst / top;
  }
  static std::string threads_line(const std::string& before) {
    const Result r = run("bench decode --context 8 --repeat 1 --config " + path("config.json"), before);
    return r.output.substr(0, r.output.find('\n'));
  }

  static Folder* root_;
};
Folder* Portability::root_ = nullptr;

TEST_F(Portability, EveryLevelGivesTheSameLogits) {
  const std::vector<std::string> all = levels();
  ASSERT_GE(all.size(), 2u);
  EXPECT_EQ(all.back().find("AVX"), std::string::npos) << "the baseline is among them";
  for (const std::string dtype : {"f32", "bf16"}) {
    const std::vector<float> best = logits(all.front(), dtype);
    for (size_t i = 1; i < all.size(); ++i)
      EXPECT_LT(difference(logits(all[i], dtype), best), dtype == "f32" ? 1e-4 : 5e-2)
          << all[i] << " " << dtype;
  }
}

TEST_F(Portability, EveryLevelTrainsAndSpeaks) {
  double first = 0;
  for (const std::string& level : levels()) {
    const std::string out = path("run-" + level);
    const Result r =
        run("train --config " + path("config.json") + " --data " + path("data") + " --out " + out, at(level));
    ASSERT_EQ(r.code, 0) << level << "\n" << r.output;
    const std::string log = read_text(out + "/log.jsonl");
    const size_t loss = log.rfind("\"loss\":");
    ASSERT_NE(loss, std::string::npos) << log;
    const double last = std::strtod(log.c_str() + loss + 7, nullptr);
    if (first == 0) first = last;
    EXPECT_NEAR(last, first, 1e-3) << level;
    const Result ids = run("generate --model " + out +
                               "/model --prompt 5 --temperature 0 --ignore-eos --max-new-tokens 10 --tokens",
                           at(level));
    EXPECT_EQ(ids.code, 0) << level << "\n" << ids.output;
  }
}

// BC-47: the same binary on CPUs that lack what this one has. An instruction that the emulated CPU does not
// know ends the program there as it would on the real one.
struct EmulatedCpu {
  const char* name;
  const char* lacks;
};
constexpr EmulatedCpu kEmulatedCpus[] = {{"Haswell", "AVX-512"},
                                         {"SandyBridge", "AVX2 and FMA"},
                                         {"Nehalem", "AVX"},
                                         {"qemu64", "all but the baseline"}};
std::string emulated(const EmulatedCpu& cpu) {
  return std::string("qemu-x86_64 -cpu ") + cpu.name + " ";
}

#if defined(__x86_64__)
TEST_F(Portability, RunsOnEmulatedCpusWithoutWideRegisters) {
  ASSERT_EQ(std::system("qemu-x86_64 --version > /dev/null"), 0) << "qemu-user is needed";
  const std::string ask =
      "generate --model " + path("model") +
      " --prompt 'the quick' --temperature 0 --ignore-eos --max-new-tokens 10 --threads 1";
  const std::string text = run(ask).output;
  const std::vector<float> here = logits_with("", "f32");
  for (const EmulatedCpu& cpu : kEmulatedCpus) {
    SCOPED_TRACE(std::string(cpu.name) + " lacks " + cpu.lacks);
    const Result help = run("--help", emulated(cpu));
    EXPECT_EQ(help.code, 0) << help.output;
    const Result said = run(ask, emulated(cpu));
    EXPECT_EQ(said.code, 0) << said.output;
    EXPECT_TRUE(said.output.ends_with(text)) << said.output << text;  // behind the emulator's own remarks
    EXPECT_LT(difference(logits_with(emulated(cpu), "f32"), here), 1e-4);
    EXPECT_LT(difference(logits_with(emulated(cpu), "bf16"), logits_with("", "bf16")), 5e-2);
  }
}

TEST(FullEmulated, UnitTestsOfTheKernels) {
  for (const EmulatedCpu& cpu : kEmulatedCpus) {
    const std::string command =
        emulated(cpu) + HYSPARSE_UNIT_CPU
        " --gtest_brief=1 --gtest_filter='CpuCases.*:CpuSelect.*:CpuGates.*:*ElemOps*:-*OffsetsBeyond*' > "
        "/dev/null 2>&1";
    EXPECT_EQ(std::system(command.c_str()), 0) << command;
  }
}
#endif

// The compiler must not have used wide registers where nobody asked the CPU first.
TEST_F(Portability, OnlyDispatchedCodeUsesWideRegisters) {
  FILE* pipe = popen("objdump -d --no-show-raw-insn " HYSPARSE_BINARY " 2>/dev/null", "r");
  ASSERT_TRUE(pipe);
  std::string symbol;
  size_t functions = 0, wide = 0, shown = 0;
  char line[4096];
  while (fgets(line, sizeof line, pipe)) {
    const std::string text = line;
    if (const size_t open = text.find('<'); text.ends_with(">:\n") && open != std::string::npos) {
      symbol = text.substr(open + 1, text.size() - open - 4);
      ++functions;
      continue;
    }
    if (text.find("%zmm") == std::string::npos && text.find("%ymm") == std::string::npos) continue;
    ++wide;
    // Levels of Highway; the tiles of gemm_bf16.cpp, which it calls where the CPU has their instructions.
    const bool dispatched =
        symbol.find("N_AVX") != std::string::npos || symbol.starts_with("_ZN8hysparse4gemm12_GLOBAL__N_1");
    if (!dispatched && ++shown <= 5) ADD_FAILURE() << symbol << ": " << text;
  }
  ASSERT_EQ(pclose(pipe), 0) << "objdump (binutils) is needed";
  EXPECT_GT(functions, 1000u);
#if defined(__x86_64__)
  EXPECT_GT(wide, 1000u) << "the dispatched code is looked at";
#endif
}

// No GPU, no driver: the program asks for neither.
TEST_F(Portability, NothingOfAGpuIsLinked) {
  FILE* pipe = popen("readelf -d " HYSPARSE_BINARY, "r");
  ASSERT_TRUE(pipe);
  std::string text;
  char line[4096];
  while (fgets(line, sizeof line, pipe)) text += line;
  ASSERT_EQ(pclose(pipe), 0);
  EXPECT_NE(text.find("NEEDED"), std::string::npos);
  for (const char* library : {"libcuda", "libcudart", "libnvidia", "libcublas"})
    EXPECT_EQ(text.find(library), std::string::npos) << text;
}

TEST_F(Portability, AffinityBoundsTheThreads) {
  cpu_set_t set;
  ASSERT_EQ(sched_getaffinity(0, sizeof set, &set), 0);
  int cpu = 0;
  while (!CPU_ISSET(cpu, &set)) ++cpu;
  EXPECT_NE(threads_line("taskset -c " + std::to_string(cpu) + " ").find(", 1 threads"), std::string::npos);
}

// Where this user may make cgroups (v1 or v2), the program runs inside real ones.
TEST_F(Portability, CgroupLimitsAreKept) {
  const fs::path v1 = "/sys/fs/cgroup/cpu", v2 = "/sys/fs/cgroup";
  const std::string name = "hysparse-test-" + std::to_string(getpid());
  const bool unified = fs::exists(v2 / "cgroup.controllers");
  const fs::path group = (unified ? v2 : v1) / name;
  std::error_code error;
  const auto put = [](const fs::path& file, const std::string& text) {
    std::ofstream out(file);
    out << text << std::flush;
    return bool(out);
  };
  bool made = fs::create_directory(group, error) && !error;
  made = made &&
         (unified ? put(group / "cpu.max", "100000 100000")
                  : put(group / "cpu.cfs_period_us", "100000") && put(group / "cpu.cfs_quota_us", "100000"));
  if (made) {
    const std::string enter =
        "/bin/sh -c 'echo $$ > " + (group / "cgroup.procs").string() + "; exec \"$0\" \"$@\"' ";
    EXPECT_NE(threads_line(enter).find(", 1 threads"), std::string::npos);
  } else {
    std::printf("no cgroup can be made here: the files are held to unit_base.Limits alone\n");
  }
  fs::remove(group, error);

  const fs::path memory = (unified ? v2 : fs::path("/sys/fs/cgroup/memory")) / (name + "-memory");
  made = fs::create_directory(memory, error) && !error &&
         put(memory / (unified ? "memory.max" : "memory.limit_in_bytes"), std::to_string(256 << 20));
  if (made) {
    const std::string enter =
        "/bin/sh -c 'echo $$ > " + (memory / "cgroup.procs").string() + "; exec \"$0\" \"$@\"' ";
    const Result r = run("bench decode --config " + path("config.json") + " --set vocab_size=4000000", enter);
    EXPECT_EQ(r.code, 1) << r.output;
    EXPECT_NE(r.output.find("this process may have 268435456"), std::string::npos) << r.output;
  }
  fs::remove(memory, error);
}

}  // namespace
}  // namespace hysparse
