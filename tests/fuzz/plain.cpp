// The same targets without libFuzzer: a fixed number of inputs, made from the seeds by mutations that depend
// on the input's number alone, so that a failure repeats.
//   fuzz_NAME COUNT | fuzz_NAME --input N | fuzz_NAME --write-seeds DIR | fuzz_NAME FILE...
#include <unistd.h>
#include <csignal>
#include <cstring>
#include <exception>
#include <filesystem>
#include <fstream>
#include <iterator>

#include "base/rng.h"
#include "target.h"

namespace {

using namespace hysparse;

long current = -1;

void report_and_die(int signal) {
  char text[64];
  const int n = std::snprintf(text, sizeof text, "input %ld died of signal %d\n", current, signal);
  if (::write(2, text, static_cast<size_t>(n)) < 0) std::_Exit(3);
  std::_Exit(3);
}

// One change: of bits, of bytes, of a number, of a whole piece.
void mutate(std::string& s, Rng& rng, const std::vector<std::string>& seeds,
            const std::vector<std::string>& words) {
  const auto at = [&] { return s.empty() ? size_t(0) : static_cast<size_t>(rng.below(s.size())); };
  const auto span = [&](size_t from) {
    return static_cast<size_t>(rng.below(std::min<size_t>(s.size() - from, 64) + 1));
  };
  switch (rng.below(10)) {
    case 0:
      if (!s.empty()) s[at()] = static_cast<char>(s[at()] ^ (1 << rng.below(8)));
      break;
    case 1:
      if (!s.empty()) s[at()] = static_cast<char>(rng.below(256));
      break;
    case 2:
      s.insert(at(), 1, static_cast<char>(rng.below(256)));
      break;
    case 3: {
      const size_t p = at();
      s.erase(p, span(p));
      break;
    }
    case 4: {
      const size_t p = at();
      const std::string piece = s.substr(p, span(p));
      s.insert(at(), piece);
      break;
    }
    case 5:
    case 6:
      s.insert(at(), words[rng.below(words.size())]);
      break;
    case 7: {  // a digit run becomes another number
      const size_t p = s.find_first_of("0123456789", at());
      if (p == std::string::npos) break;
      const size_t e = std::min(s.find_first_not_of("0123456789", p), s.size());
      static const char* const kNumbers[] = {"0",
                                             "1",
                                             "2",
                                             "7",
                                             "63",
                                             "64",
                                             "65",
                                             "255",
                                             "65536",
                                             "-1",
                                             "2147483648",
                                             "9223372036854775807",
                                             "9223372036854775808",
                                             "18446744073709551615",
                                             "1e9",
                                             "0.5"};
      s.replace(p, e - p, kNumbers[rng.below(std::size(kNumbers))]);
      break;
    }
    case 8: {  // the head of this one, the tail of another
      const std::string& other = seeds[rng.below(seeds.size())];
      s = s.substr(0, at()) + other.substr(static_cast<size_t>(rng.below(other.size() + 1)));
      break;
    }
    case 9:
      s.resize(at());
      break;
  }
}

std::string input_number(long n, const std::vector<std::string>& seeds,
                         const std::vector<std::string>& words) {
  Rng rng(2024, static_cast<uint64_t>(n));
  std::string s = seeds[rng.below(seeds.size())];
  if (n < static_cast<long>(seeds.size())) return seeds[static_cast<size_t>(n)];  // each as it is, first
  const uint64_t changes = 1 + rng.below(4);
  for (uint64_t i = 0; i < changes; ++i) mutate(s, rng, seeds, words);
  if (s.size() > 65536) s.resize(65536);
  return s;
}

bool run(const std::string& input) {
  try {
    return fuzz::run_input(input);
  } catch (const std::exception& e) {
    std::fprintf(stderr, "input %ld: an exception other than Error came out: %s\n", current, e.what());
    std::exit(3);
  }
}

}  // namespace

int main(int argc, char** argv) {
  for (int s : {SIGSEGV, SIGBUS, SIGABRT, SIGFPE, SIGILL}) std::signal(s, report_and_die);
  const auto seeds = fuzz::seeds(), words = fuzz::dictionary();
  if (argc == 3 && std::strcmp(argv[1], "--write-seeds") == 0) {
    std::filesystem::create_directories(argv[2]);
    for (size_t i = 0; i < seeds.size(); ++i)
      std::ofstream(std::filesystem::path(argv[2]) / ("seed-" + std::to_string(i)), std::ios::binary)
          << seeds[i];
    return 0;
  }
  if (argc == 3 && std::strcmp(argv[1], "--input") == 0) {
    current = std::atol(argv[2]);
    std::printf("input %ld: %s\n", current,
                run(input_number(current, seeds, words)) ? "accepted" : "refused");
    return 0;
  }
  if (argc == 2 && std::strspn(argv[1], "0123456789") == std::strlen(argv[1])) {
    const long count = std::atol(argv[1]);
    long accepted = 0;
    for (current = 0; current < count; ++current) {
      const bool ok = run(input_number(current, seeds, words));
      accepted += ok;
      if (!ok && current < static_cast<long>(seeds.size())) {
        std::fprintf(stderr, "seed %ld was refused\n", current);
        return 1;
      }
    }
    std::printf("%ld inputs, %ld accepted\n", count, accepted);
    // Mutants must reach both ends, or nothing behind the first check was tried.
    return accepted > static_cast<long>(seeds.size()) && accepted < count ? 0 : 1;
  }
  for (int i = 1; i < argc; ++i) {
    std::ifstream file(argv[i], std::ios::binary);
    const std::string input{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
    std::printf("%s: %s\n", argv[i], run(input) ? "accepted" : "refused");
  }
  return argc > 1 ? 0 : 2;
}
