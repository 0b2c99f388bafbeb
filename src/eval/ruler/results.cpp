#include "eval/ruler/results.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <limits>
#include <nlohmann/json.hpp>
#include <type_traits>

#include "base/error.h"
#include "io/files.h"

namespace hysparse::ruler {
namespace {

constexpr int kFormat = 1;

// A value of exactly this type: no rounding, no wrapping.
template <class T>
bool is_a(const Json& v) {
  if constexpr (std::is_same_v<T, bool>) {
    return v.is_boolean();
  } else if constexpr (std::is_same_v<T, std::string>) {
    return v.is_string();
  } else if constexpr (std::is_same_v<T, double>) {
    return v.is_number();
  } else if constexpr (std::is_integral_v<T>) {
    return v.is_number_integer() &&
           (!v.is_number_unsigned() || v.get<uint64_t>() <= std::numeric_limits<T>::max()) &&
           v.get<int64_t>() >= 0;
  } else {
    return v.is_array() && std::all_of(v.begin(), v.end(), is_a<typename T::value_type>);
  }
}

template <class T>
T member(const Json& json, const char* key, const std::string& where) {
  const auto at = json.find(key);
  if (at == json.end()) throw input_error(where, fmt::format("\"{}\" is missing", key));
  if (!is_a<T>(*at))
    throw input_error(where, fmt::format("\"{}\" is of the wrong type: {}", key, at->type_name()));
  return at->get<T>();
}

// Of the first setting that differs.
void compare(const Json& kept, const Json& now, const std::string& where) {
  for (const auto& [key, value] : now.items()) {
    const Json* had = kept.is_object() && kept.contains(key) ? &kept[key] : nullptr;
    if (had && *had == value) continue;
    throw input_error(where,
                      fmt::format("the answers there were made with {} {}, asked for is {}", key,
                                  had ? dump_json(*had, -1) : "unset", dump_json(value, -1)),
                      "give another --out, or the same settings");
  }
}

// Closes a file unless told not to.
struct Closer {
  std::FILE*& file;
  mutable bool keep = false;
  void dismiss() const { keep = true; }
  ~Closer() {
    if (keep) return;
    std::fclose(file);
    file = nullptr;
  }
};

}  // namespace

Json record_json(const Record& r) {
  Json out = {{"task", r.task},
              {"length", r.length},
              {"index", r.index},
              {"score", r.score.share},
              {"strict", r.score.strict},
              {"answer", r.answer},
              {"references", r.references},
              {"found", r.score.found},
              {"depths", r.depths},
              {"question", r.question},
              {"finish", r.finish},
              {"empty", r.score.empty},
              {"cut", r.cut},
              {"truncated", r.truncated},
              {"exhausted", r.exhausted},
              {"prompt_tokens", r.prompt_tokens},
              {"answer_tokens", r.answer_tokens},
              {"drawn", r.drawn}};
  if (!r.form.empty()) out["form"] = r.form;
  return out;
}

Record record_of(const Json& json, const std::string& where) {
  if (!json.is_object()) throw expected_error(where, "an object", json.type_name());
  Record r;
  r.task = member<std::string>(json, "task", where);
  r.length = member<int64_t>(json, "length", where);
  r.index = member<int64_t>(json, "index", where);
  r.score.share = member<double>(json, "score", where);
  r.score.strict = member<double>(json, "strict", where);
  r.answer = member<std::string>(json, "answer", where);
  r.references = member<std::vector<std::string>>(json, "references", where);
  r.score.found = member<std::vector<uint8_t>>(json, "found", where);
  r.depths = member<std::vector<double>>(json, "depths", where);
  r.question = member<std::string>(json, "question", where);
  r.finish = member<std::string>(json, "finish", where);
  r.score.empty = member<bool>(json, "empty", where);
  r.cut = member<bool>(json, "cut", where);
  r.truncated = member<bool>(json, "truncated", where);
  r.exhausted = member<bool>(json, "exhausted", where);
  r.prompt_tokens = member<int64_t>(json, "prompt_tokens", where);
  r.answer_tokens = member<int64_t>(json, "answer_tokens", where);
  r.drawn = member<int64_t>(json, "drawn", where);
  if (json.contains("form")) r.form = member<std::string>(json, "form", where);
  if (r.score.found.size() != r.references.size() ||
      (!r.depths.empty() && r.depths.size() != r.references.size()))
    throw input_error(where, "found and depths do not have an entry a reference");
  return r;
}

Results::Results(const std::filesystem::path& folder, const Json& settings)
    : path_(folder / "results.jsonl") {
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (error) throw input_error(folder.string(), "could not create the folder: " + error.message());
  const int descriptor = open(path_.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644);
  file_ = descriptor < 0 ? nullptr : fdopen(descriptor, "r+b");
  if (!file_) throw io_error(path_, "open", errno);
  const Closer closer{file_};  // where this throws
  // Two runs at once would write each other's samples twice.
  if (flock(descriptor, LOCK_EX | LOCK_NB) != 0)
    throw input_error(path_.string(), "another run writes there now",
                      "give another --out, or wait for its end");
  const size_t whole = read(settings);
  if (ftruncate(descriptor, static_cast<off_t>(whole)) != 0 || std::fseek(file_, 0, SEEK_END) != 0)
    throw io_error(path_, "write", errno);
  if (whole == 0) write_line({{"ruler", kFormat}, {"settings", settings}});
  closer.dismiss();
}

// Bytes up to the end of the last whole line.
size_t Results::read(const Json& settings) {
  const std::string all = read_file(path_);
  // A first line that was cut short is begun again; anything else is somebody's.
  const std::string head = dump_json({{"ruler", kFormat}, {"settings", Json::object()}}, -1);
  const std::string_view mark = std::string_view(head).substr(0, head.find("{}"));
  if (all.find('\n') == std::string::npos && all.substr(0, mark.size()) != mark.substr(0, all.size()))
    throw input_error(path_.string(), "this is no file of `hysparse eval ruler`", "give another --out");
  size_t whole = 0, number = 0;
  for (size_t end = 0; (end = all.find('\n', whole)) != std::string::npos; whole = end + 1) {
    const std::string where = fmt::format("{}:{}", path_.string(), ++number);
    const Json json = parse_json(std::string_view(all).substr(whole, end - whole), where);
    if (number == 1) {
      if (!json.is_object() || !json.contains("ruler") || json["ruler"] != kFormat)
        throw input_error(where, "this is no file of `hysparse eval ruler`, or of another version of it",
                          "give another --out");
      compare(json.contains("settings") ? json["settings"] : Json(), settings, path_.string());
      continue;
    }
    Record r = record_of(json, where);
    Key key{r.task, r.length, r.index};
    records_[std::move(key)] = std::move(r);
  }
  found_ = static_cast<int64_t>(records_.size());
  return whole;
}

Results::~Results() {
  if (!file_) return;
  std::fflush(file_);
  fsync(fileno(file_));
  std::fclose(file_);
}

void Results::write_line(const Json& json) {
  const std::string line = dump_json(json, -1) + "\n";
  if (std::fwrite(line.data(), 1, line.size(), file_) != line.size() || std::fflush(file_) != 0)
    throw io_error(path_, "write", errno);
}

void Results::add(Record record) {
  if (file_) write_line(record_json(record));
  Key key{record.task, record.length, record.index};
  records_[std::move(key)] = std::move(record);
}

}  // namespace hysparse::ruler
