#include <fmt/format.h>

#include <map>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/rng.h"
#include "eval/ruler/draw.h"
#include "eval/ruler/materials.h"
#include "io/files.h"
#include "io/json_value.h"

namespace hysparse::ruler {
namespace {

// Members of a JSON file, each missing or wrong one an error that says where.
class Reader {
 public:
  Reader(const Json& json, std::string where) : json_(json), where_(std::move(where)) {}

  Reader member(const char* key) const {
    if (!json_.is_object()) throw expected_error(where_, "an object", json_.type_name());
    const auto at = json_.find(key);
    if (at == json_.end()) throw input_error(where_, fmt::format("\"{}\" is missing", key));
    return {*at, fmt::format("{}.{}", where_, key)};
  }
  bool has(const char* key) const { return json_.is_object() && json_.contains(key); }
  bool is_list() const { return json_.is_array(); }
  size_t size() const {
    if (!json_.is_array()) throw expected_error(where_, "a list", json_.type_name());
    return json_.size();
  }
  Reader operator[](size_t i) const {
    if (i >= size())
      throw expected_error(where_, fmt::format("at least {} entries", i + 1), fmt::format("{}", size()));
    return {json_[i], fmt::format("{}[{}]", where_, i)};
  }
  std::string text() const {
    if (!json_.is_string()) throw expected_error(where_, "a text", json_.type_name());
    return json_.get<std::string>();
  }

 private:
  const Json& json_;
  std::string where_;
};

// Documents by their text: the same one is there once.
class Documents {
 public:
  explicit Documents(std::vector<std::string>& list) : list_(list) {}
  int32_t add(std::string text) {
    const auto [at, fresh] = known_.try_emplace(text, static_cast<int32_t>(list_.size()));
    if (fresh) list_.push_back(std::move(text));
    return at->second;
  }

 private:
  std::vector<std::string>& list_;
  std::map<std::string, int32_t> known_;
};

void finish(QuestionSet& set, const std::string& where) {
  if (set.items.empty()) throw input_error(where, "no question that has an answer");
  const auto mix = [&](const std::string& text) {
    for (const char c : text) set.fingerprint = mix64(set.fingerprint ^ static_cast<unsigned char>(c));
  };
  for (const std::string& d : set.documents) mix(d);
  for (const QuestionSet::Item& item : set.items) {
    mix(item.question);
    for (const std::string& a : item.answers) mix(a);
  }
}

}  // namespace

QuestionSet read_squad(const std::string& path) {
  return squad_questions(read_json_file(path), path);
}

QuestionSet squad_questions(const Json& json, const std::string& source) {
  QuestionSet set;
  set.source = source;
  Documents documents(set.documents);
  const Reader articles = Reader(json, source).member("data");
  for (size_t a = 0; a < articles.size(); ++a) {
    const Reader paragraphs = articles[a].member("paragraphs");
    std::vector<int32_t> ids;
    for (size_t p = 0; p < paragraphs.size(); ++p)
      ids.push_back(documents.add(paragraphs[p].member("context").text()));
    for (size_t p = 0; p < paragraphs.size(); ++p) {
      const Reader qas = paragraphs[p].member("qas");
      for (size_t q = 0; q < qas.size(); ++q) {
        QuestionSet::Item item;
        item.question = qas[q].member("question").text();
        const Reader answers = qas[q].member("answers");
        for (size_t i = 0; i < answers.size(); ++i) {
          std::string answer = answers[i].member("text").text();
          if (!answer.empty() &&
              std::find(item.answers.begin(), item.answers.end(), answer) == item.answers.end())
            item.answers.push_back(std::move(answer));
        }
        if (item.answers.empty()) continue;  // version 2 asks what its text does not say
        item.gold = {ids[p]};
        for (const int32_t id : ids)
          if (id != ids[p]) item.near.push_back(id);
        set.items.push_back(std::move(item));
      }
    }
  }
  finish(set, source);
  return set;
}

QuestionSet read_hotpot(const std::string& path) {
  return hotpot_questions(read_json_file(path), path);
}

QuestionSet hotpot_questions(const Json& json, const std::string& source) {
  QuestionSet set;
  set.source = source;
  Documents documents(set.documents);
  const Reader items(json, source);
  for (size_t i = 0; i < items.size(); ++i) {
    QuestionSet::Item item;
    item.question = items[i].member("question").text();
    item.answers = {items[i].member("answer").text()};
    std::vector<std::string> supporting;
    if (items[i].has("supporting_facts")) {
      const Reader facts = items[i].member("supporting_facts");
      for (size_t f = 0; f < facts.size(); ++f) supporting.push_back(facts[f][0].text());
    }
    const Reader context = items[i].member("context");
    for (size_t c = 0; c < context.size(); ++c) {
      const std::string title = context[c][0].text();
      std::string text;
      const Reader sentences = context[c][1];
      for (size_t s = 0; s < sentences.size(); ++s) text += sentences[s].text();
      const bool gold =
          supporting.empty() || std::find(supporting.begin(), supporting.end(), title) != supporting.end();
      (gold ? item.gold : item.near).push_back(documents.add(title + "\n" + text));
    }
    if (item.answers.front().empty() || item.gold.empty()) continue;
    set.items.push_back(std::move(item));
  }
  finish(set, source);
  return set;
}

namespace {

// "Delvamir": a name of `syllables`, the first letter a capital.
std::string invent(int syllables, Rng& rng) {
  static constexpr std::string_view kOnsets[] = {"b", "br", "d", "dr", "f",  "g", "gl", "h", "k",  "l", "m",
                                                 "n", "p",  "r", "s",  "st", "t", "tr", "v", "th", "z"};
  static constexpr std::string_view kRimes[] = {"a",  "an", "ar", "e",  "el", "en", "i",  "il",
                                                "in", "o",  "ol", "or", "u",  "um", "ur", "ay"};
  std::string out;
  for (int i = 0; i < syllables; ++i) {
    out += kOnsets[rng.below(std::size(kOnsets))];
    out += kRimes[rng.below(std::size(kRimes))];
  }
  out[0] = static_cast<char>(out[0] - 'a' + 'A');
  return out;
}

// "a clever thistle", "an oaken globe"
std::string some_thing(Rng& rng) {
  const std::string_view how = adjectives()[rng.below(adjectives().size())];
  const bool vowel = std::string_view("aeiou").find(how.front()) != std::string_view::npos;
  return fmt::format("{} {} {}", vowel ? "an" : "a", how, nouns()[rng.below(nouns().size())]);
}

template <size_t n>
std::string_view pick(const std::string_view (&list)[n], Rng& rng) {
  return list[rng.below(n)];
}

}  // namespace

QuestionSet invented_questions(bool two_hops, int64_t documents) {
  static constexpr std::string_view kTowns[] = {"ford", "haven", "mouth", "stead", "ville", "wick"};
  static constexpr std::string_view kTrades[] = {"architect",   "astronomer", "botanist", "cartographer",
                                                 "clockmaker",  "composer",   "engraver", "geologist",
                                                 "glassblower", "historian",  "painter",  "printer"};
  static constexpr std::string_view kBuildings[] = {"Bridge",      "Library", "Lighthouse", "Museum",
                                                    "Observatory", "Opera",   "Station",    "Theatre"};
  QuestionSet set;
  set.source = two_hops ? "invented people and buildings" : "invented people";
  Rng rng(two_hops ? 2 : 1);
  Documents list(set.documents);
  std::unordered_set<std::string> used;
  const auto fresh = [&](const auto& make) {
    std::string name = make();
    while (!used.insert(name).second) name = make();
    return name;
  };
  // A draw a statement: their order is part of what is made.
  const auto person = [&] {
    const std::string first = invent(2, rng);
    return first + " " + invent(3, rng);
  };
  const auto place = [&] {
    const std::string first = invent(2, rng);
    return fmt::format("{}{}", first, pick(kTowns, rng));
  };
  const auto house = [&] {
    const std::string first = invent(3, rng);
    return fmt::format("{} {}", first, pick(kBuildings, rng));
  };
  const int64_t people = two_hops ? documents / 2 : documents;
  for (int64_t i = 0; i < people; ++i) {
    const std::string name = fresh(person), teacher = fresh(person), town = fresh(place);
    const std::string_view trade = pick(kTrades, rng), quarter = pick(kBuildings, rng);
    const uint64_t born = 1700 + rng.below(250), moved = born + 18 + rng.below(30);
    const std::string one = some_thing(rng), two = some_thing(rng);
    const std::string about = fmt::format(
        "{} was born in {} in {}. The {} learned the trade from {} and worked in the {} quarter from {} on. "
        "Of "
        "the early works {} and {} are kept.",
        name, town, born, trade, teacher, quarter, moved, one, two);
    const int32_t document = list.add(two_hops ? name + "\n" + about : about);
    if (!two_hops) {
      const bool by_town = rng.below(2) == 0;
      set.items.push_back({by_town ? fmt::format("In which town was {} born?", name)
                                   : fmt::format("From whom did {} learn the trade?", name),
                           {by_town ? town : teacher},
                           {document},
                           {}});
      continue;
    }
    const std::string building = fresh(house), beside = some_thing(rng);
    const int32_t second = list.add(fmt::format(
        "{0}\nThe {0} was opened in {1} beside {2}. It was designed by {3} and stands on the {4} bank of the "
        "river.",
        building, moved + 10, beside, name, rng.below(2) == 0 ? "left" : "right"));
    set.items.push_back({fmt::format("In which town was the designer of the {} born?", building),
                         {town},
                         {document, second},
                         {}});
  }
  finish(set, set.source);
  return set;
}

}  // namespace hysparse::ruler
