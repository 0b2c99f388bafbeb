// STUB: readers that answer RULER's prompts from their text alone: one knows how each task is solved, one
// says nothing.
#pragma once

#include <algorithm>
#include <map>
#include <regex>
#include <set>
#include <string>
#include <vector>

namespace hysparse::tests {

// All that stands between the last `from` and the next `to` behind it; empty where there is none.
inline std::string between(const std::string& text, const std::string& from, const std::string& to) {
  const size_t at = text.rfind(from);
  if (at == std::string::npos) return {};
  const size_t begin = at + from.size(), end = text.find(to, begin);
  return end == std::string::npos ? std::string() : text.substr(begin, end - begin);
}

inline std::vector<std::string> words_of(const std::string& text) {
  std::vector<std::string> out(1);
  for (const char c : text) {
    if (c == ' ' || c == '\n') {
      if (!out.back().empty()) out.emplace_back();
    } else {
      out.back() += c;
    }
  }
  if (out.back().empty()) out.pop_back();
  return out;
}

inline std::vector<std::string> most_frequent(const std::vector<std::string>& words, size_t n) {
  std::map<std::string, int> counts;
  for (const std::string& w : words) ++counts[w];
  std::vector<std::pair<int, std::string>> order;
  for (const auto& [w, c] : counts) order.emplace_back(-c, w);
  std::sort(order.begin(), order.end());
  std::vector<std::string> out;
  for (size_t i = 0; i < std::min(n, order.size()); ++i) out.push_back(order[i].second);
  return out;
}

inline std::string joined(const std::vector<std::string>& list, const std::string& between = " ") {
  std::string out;
  for (const std::string& s : list) out += (out.empty() ? "" : between) + s;
  return out;
}

inline std::string read_needles(const std::string& prompt) {
  const std::string asked = between(prompt, " for ", " mentioned in the provided text ");
  const std::string context = between(prompt, "afterwards.\n", "\nWhat ");
  std::vector<std::string> values;
  std::string list = asked;
  std::replace(list.begin(), list.end(), ',', ' ');
  for (const std::string& key : words_of(list)) {
    if (key == "and") continue;
    const std::string says = " for " + key + " is: ";
    for (size_t at = 0; (at = context.find(says, at)) != std::string::npos; ++at) {
      const size_t begin = at + says.size();
      values.push_back(context.substr(begin, context.find('.', begin) - begin));
    }
  }
  return joined(values, ", ");
}

inline std::string read_chain(const std::string& prompt) {
  const std::string context = between(prompt, "hidden in the following text.\n\n", "Question:");
  std::set<std::string> have;
  const std::string value = between(prompt, "assgined the value ", ", they are");
  std::vector<std::string> names;
  for (size_t at = 0; (at = context.find("VAR ", at)) != std::string::npos;) {
    const std::string line = context.substr(at, context.find('\n', at) - at);
    at += line.size();
    const std::vector<std::string> w = words_of(line);  // VAR NAME = VALUE | VAR NAME = VAR NAME
    if (w.size() < 4 || w[2] != "=") continue;
    if (w.back() == value || have.contains(w.back())) {
      have.insert(w[1]);
      names.push_back(w[1]);
    }
  }
  return joined(names);
}

inline std::string read_question(const std::string& prompt) {
  const std::string question = between(prompt, "\n\nQuestion: ", "?") + "?";
  const std::string context =
      between(prompt, "The following are given documents.\n\n", "\n\nAnswer the question");
  const auto find = [&](const std::string& pattern, const std::string& text) {
    std::smatch m;
    return std::regex_search(text, m, std::regex(pattern)) ? m[1].str() : std::string();
  };
  if (std::string b = find("designer of the (.+) born", question); !b.empty()) {
    const std::string person = find("The " + b + " was opened[^\n]* designed by (\\S+ \\S+) and", context);
    return find(person + " was born in (\\S+) in", context);
  }
  if (std::string p = find("In which town was (.+) born", question); !p.empty())
    return find(p + " was born in (\\S+) in", context);
  if (std::string p = find("From whom did (.+) learn", question); !p.empty())
    return find(p + " was born[^\n]* the trade from (\\S+ \\S+) and worked", context);
  return find("The answer to " + find("What is the answer to (\\S+)\\?", question) + " is (\\S+)\\.",
              context);
}

// What a reader says who knows every task; empty where the prompt does not hold it.
inline std::string oracle(const std::string& prompt) {
  if (prompt.find("special magic") != std::string::npos) return " " + read_needles(prompt);
  if (prompt.find("Memorize and track") != std::string::npos) return read_chain(prompt);
  if (prompt.find("numbered list of words") != std::string::npos) {
    std::vector<std::string> words;
    for (const std::string& w : words_of(between(prompt, "appear most often.\n", "\nQuestion:")))
      if (w.back() != '.') words.push_back(w);
    std::string out;
    for (const std::string& w : most_frequent(words, 10)) out += " " + w;
    return out;
  }
  if (prompt.find("coded text") != std::string::npos) {
    std::vector<std::string> words;
    for (const std::string& w :
         words_of(between(prompt, "Find the three most frequently appeared coded words. ", "\nQuestion:")))
      if (w != "...") words.push_back(w);
    return " " + joined(most_frequent(words, 3));
  }
  return " " + read_question(prompt);
}

}  // namespace hysparse::tests
