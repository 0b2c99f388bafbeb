#include "io/json_fields.h"

#include <gtest/gtest.h>

#include <limits>
#include <nlohmann/json.hpp>

#include "support.h"

namespace hysparse {
namespace {

using namespace testing_io;

enum class Colour { red, green, dark_blue };

struct Inner {
  int64_t steps = 10;
  double lr = 1e-3;
  std::optional<double> cap;
  template <class V>
  static void fields(V&& visit) {
    visit("steps", &Inner::steps, "how many");
    visit("lr", &Inner::lr, "rate");
    visit("cap", &Inner::cap, "limit");
  }
};

struct Settings {
  bool flag = false;
  int64_t count = 4;
  double ratio = 0.5;
  std::string name = "x";
  std::vector<int64_t> ids;
  std::vector<std::string> kinds{"a"};
  std::optional<int64_t> head_dim;
  std::optional<bool> maybe;
  std::optional<std::string> title;
  std::optional<std::vector<int64_t>> more;
  Colour colour = Colour::red;
  std::optional<Colour> other;
  Inner train;
  std::optional<Inner> extra;
  template <class V>
  static void fields(V&& visit) {
    using S = Settings;
    visit("flag", &S::flag, "a flag");
    visit("count", &S::count, "a count");
    visit("ratio", &S::ratio, "a ratio");
    visit("name", &S::name, "a name");
    visit("ids", &S::ids, "some ids");
    visit("kinds", &S::kinds, "some kinds");
    visit("head_dim", &S::head_dim, "dims");
    visit("maybe", &S::maybe, "perhaps");
    visit("title", &S::title, "a title");
    visit("more", &S::more, "more ids");
    visit("colour", &S::colour, "a colour");
    visit("other", &S::other, "another colour");
    visit("train", &S::train, "a group");
    visit("extra", &S::extra, "a group that may be absent");
  }
};

}  // namespace

template <>
struct EnumNames<Colour> {
  static const std::vector<std::pair<Colour, std::string_view>>& list() {
    static const std::vector<std::pair<Colour, std::string_view>> names = {
        {Colour::red, "red"}, {Colour::green, "green"}, {Colour::dark_blue, "dark_blue"}};
    return names;
  }
};

namespace {

Settings read(const std::string& text, Settings s = {}) {
  read_fields(parse_json(text, "f.json"), s, "f.json");
  return s;
}

void refused(const std::string& text, std::vector<std::string> parts) {
  parts.insert(parts.begin(), "f.json: ");
  expect_input_error(
      parts, [&] { read(text); }, text);
}

TEST(ReadFields, SetsWhatIsPresentAndLeavesTheRest) {
  Settings before;
  before.count = 77;
  before.train.lr = 5;
  const Settings s = read(R"({"flag": true, "ratio": 3, "ids": [5, 9], "kinds": [], "colour": "dark_blue",
                              "train": {"steps": 20}, "title": "t", "more": [1], "other": "green", "maybe": false,
                              "extra": {"cap": 2.5}, "head_dim": 32})",
                          before);
  EXPECT_TRUE(s.flag);
  EXPECT_EQ(s.count, 77);
  EXPECT_EQ(s.ratio, 3.0);
  EXPECT_EQ(s.name, "x");
  EXPECT_EQ(s.ids, (std::vector<int64_t>{5, 9}));
  EXPECT_TRUE(s.kinds.empty());
  EXPECT_EQ(s.colour, Colour::dark_blue);
  EXPECT_EQ(s.train.steps, 20);
  EXPECT_EQ(s.train.lr, 5.0);
  EXPECT_EQ(s.title.value(), "t");
  EXPECT_EQ(s.more.value(), std::vector<int64_t>{1});
  EXPECT_EQ(s.other.value(), Colour::green);
  EXPECT_EQ(s.maybe.value(), false);
  EXPECT_EQ(s.extra.value().cap.value(), 2.5);
  EXPECT_EQ(s.extra.value().steps, 10);
  EXPECT_EQ(s.head_dim.value(), 32);
}

TEST(ReadFields, OneIntegerIsAListOfOne) {
  EXPECT_EQ(read(R"({"ids": 5})").ids, std::vector<int64_t>{5});
  EXPECT_EQ(read(R"({"more": 7})").more.value(), std::vector<int64_t>{7});
  refused(R"({"ids": "5"})", {"ids: expected an integer or a list of integers, got text \"5\""});
  refused(R"({"ids": 5.0})", {"ids: expected an integer", "got 5.0"});
  refused(R"({"ids": [5, "9"]})", {"ids[1]: expected an integer, got text \"9\""});
  refused(R"({"ids": [5, null]})", {"ids[1]", "null"});
  refused(R"({"ids": null})", {"ids", "null"});
  refused(R"({"kinds": "a"})", {"kinds: expected a list of texts"});
  refused(R"({"kinds": ["a", 1]})", {"kinds[1]: expected a text, got 1"});
}

// Counts as text or as 4.0; null is absent, and only where a value may be absent.
TEST(ReadFields, BC29_RefusesOtherTypesPrecisely) {
  refused(R"({"count": "4"})", {"count: expected an integer, got text \"4\"", "without quotes"});
  refused(R"({"count": 4.0})", {"count: expected an integer, got 4.0", "write 4"});
  refused(R"({"count": 4.5})", {"count: expected an integer, got 4.5"});
  refused(R"({"count": 4e0})", {"count: expected an integer"});
  refused(R"({"count": true})", {"count: expected an integer, got true"});
  refused(R"({"count": null})", {"count: expected an integer, got null"});
  refused(R"({"count": [4]})", {"count: expected an integer, got a list of 1"});
  refused(R"({"count": {}})", {"count: expected an integer, got an object"});
  refused(R"({"head_dim": "32"})", {"head_dim: expected an integer or null, got text \"32\""});
  refused(R"({"head_dim": 32.0})", {"head_dim: expected an integer or null, got 32.0"});
  refused(R"({"flag": 1})", {"flag: expected true or false, got 1"});
  refused(R"({"flag": "true"})", {"flag: expected true or false, got text \"true\""});
  refused(R"({"ratio": "0.5"})", {"ratio: expected a number, got text \"0.5\""});
  refused(R"({"ratio": false})", {"ratio: expected a number, got false"});
  refused(R"({"name": 3})", {"name: expected a text, got 3"});
  refused(R"({"colour": 0})", {"colour: expected one of red, green, dark_blue, got 0"});
  refused(R"({"colour": "gren"})", {"colour", "gren", "did you mean green?"});
  refused(R"({"train": 3})", {"train: expected an object, got 3"});
  refused(R"({"train": {"lr": "x"}})", {"train.lr: expected a number"});
  refused(R"([1])", {"expected an object, got a list of 1"});

  Settings s;
  s.head_dim = 5;
  s.title = "t";
  s.extra.emplace();
  s = read(R"({"head_dim": null, "title": null, "maybe": null, "more": null, "other": null, "extra": null})",
           s);
  EXPECT_FALSE(s.head_dim || s.title || s.maybe || s.more || s.other || s.extra);
}

TEST(ReadFields, IntegersKeepTheirRange) {
  EXPECT_EQ(read(R"({"count": 9223372036854775807})").count, std::numeric_limits<int64_t>::max());
  EXPECT_EQ(read(R"({"count": -9223372036854775808})").count, std::numeric_limits<int64_t>::min());
  for (const char* n : {"9223372036854775808", "18446744073709551615", "18446744073709551616",
                        "-9223372036854775809", "99999999999999999999999999", "1e30"}) {
    refused("{\"count\": " + std::string(n) + "}", {"count: expected an integer within"});
    refused("{\"ids\": [" + std::string(n) + "]}", {"ids[0]: expected an integer within"});
  }
  EXPECT_EQ(read(R"({"ratio": 18446744073709551615})").ratio, 0x1p64);
  EXPECT_EQ(read(R"({"ratio": -3})").ratio, -3.0);
}

TEST(ReadFields, UnknownKeysNameTheNearest) {
  refused(R"({"cuont": 1})", {"unknown key \"cuont\"", "did you mean \"count\"?"});
  refused(R"({"train": {"lrr": 1}})", {"unknown key \"train.lrr\"", "did you mean \"train.lr\"?"});
  refused(R"({"something_else_entirely": 1})", {"unknown key \"something_else_entirely\""});
  Settings s;
  const Json j = parse_json(R"({"data": {"x": 1}, "count": 5})", "f");
  read_fields(j, s, "f.json", {"data"});
  EXPECT_EQ(s.count, 5);
  expect_input_error({"unknown key \"dat\"", "\"data\""},
                     [&] { read_fields(parse_json(R"({"dat": 1})", "f"), s, "f.json", {"data"}); });
  // allowed at the top only
  expect_input_error({"unknown key \"train.data\""}, [&] {
    read_fields(parse_json(R"({"train": {"data": 1}})", "f"), s, "f.json", {"data"});
  });
}

TEST(ReadFields, AnErrorChangesNothing) {
  Settings s;
  const Json j = parse_json(R"({"count": 9, "train": {"lr": 1}, "ratio": "bad"})", "f");
  expect_input_error({"ratio"}, [&] { read_fields(j, s, "f.json"); });
  EXPECT_EQ(s.count, 4);
  EXPECT_EQ(s.train.lr, 1e-3);
}

TEST(WriteFields, RoundTripsAndLeavesOutTheAbsent) {
  Settings s;
  s.ratio = 0.1;
  s.ids = {1, 2};
  s.head_dim = 7;
  s.colour = Colour::green;
  s.train.cap = 1.0 / 3;
  const Json j = write_fields(s);
  EXPECT_FALSE(j.contains("title"));
  EXPECT_FALSE(j.contains("extra"));
  EXPECT_EQ(j["colour"], "green");
  EXPECT_EQ(j.begin().key(), "flag");  // in the order of the fields
  const Settings back = read(dump_json(j));
  EXPECT_EQ(back.ratio, 0.1);
  EXPECT_EQ(back.ids, s.ids);
  EXPECT_EQ(back.head_dim, s.head_dim);
  EXPECT_EQ(back.colour, Colour::green);
  EXPECT_EQ(back.train.cap.value(), 1.0 / 3);
  EXPECT_EQ(write_fields(back), j);
}

Settings with(std::initializer_list<std::pair<const char*, const char*>> sets) {
  Settings s;
  for (const auto& [key, value] : sets) set_field(s, key, value, "--set");
  return s;
}

TEST(SetField, TakesEveryType) {
  const Settings s = with({{"flag", "true"},
                           {"count", "-12"},
                           {"ratio", "3e-4"},
                           {"name", "bare text"},
                           {"title", "\"quoted \\u00e9\""},
                           {"ids", "[5, 9]"},
                           {"more", "7"},
                           {"kinds", "[\"a\", \"b\"]"},
                           {"head_dim", "32"},
                           {"colour", "green"},
                           {"other", "\"dark_blue\""},
                           {"train.lr", ".5"},
                           {"train.steps", "3"},
                           {"extra.steps", "8"}});
  EXPECT_TRUE(s.flag);
  EXPECT_EQ(s.count, -12);
  EXPECT_EQ(s.ratio, 3e-4);
  EXPECT_EQ(s.name, "bare text");
  EXPECT_EQ(s.title.value(), "quoted \xc3\xa9");
  EXPECT_EQ(s.ids, (std::vector<int64_t>{5, 9}));
  EXPECT_EQ(s.more.value(), std::vector<int64_t>{7});
  EXPECT_EQ(s.kinds, (std::vector<std::string>{"a", "b"}));
  EXPECT_EQ(s.head_dim.value(), 32);
  EXPECT_EQ(s.colour, Colour::green);
  EXPECT_EQ(s.other.value(), Colour::dark_blue);
  EXPECT_EQ(s.train.lr, 0.5);
  EXPECT_EQ(s.train.steps, 3);
  EXPECT_EQ(s.extra.value().steps, 8);
  EXPECT_FALSE(with({{"head_dim", "5"}, {"head_dim", "null"}}).head_dim);
  EXPECT_EQ(with({{"name", ""}}).name, "");
  EXPECT_EQ(with({{"name", "null"}}).name, "null");
  EXPECT_EQ(with({{"name", "4"}}).name, "4");
  EXPECT_EQ(with({{"ratio", "4"}}).ratio, 4.0);
}

TEST(SetField, RefusesPrecisely) {
  const auto bad = [](const char* key, const char* value, std::vector<std::string> parts) {
    parts.insert(parts.begin(), "--set: ");
    Settings s;
    expect_input_error(
        parts, [&] { set_field(s, key, value, "--set"); }, std::string(key) + "=" + value);
    EXPECT_EQ(write_fields(s), write_fields(Settings{}));
  };
  bad("count", "4.0", {"count: expected an integer, got 4.0"});
  bad("count", "\"4\"", {"count: expected an integer, got text \"4\""});
  bad("count", "four", {"count: expected an integer, got \"four\""});
  bad("count", "", {"count: expected an integer, got \"\""});
  bad("count", "99999999999999999999", {"count: expected an integer within"});
  bad("count", "null", {"count: expected an integer, got null"});
  bad("flag", "yes", {"flag: expected true or false, got \"yes\""});
  bad("flag", "1", {"flag: expected true or false, got 1"});
  bad("ratio", "nan", {"ratio: expected a number, got \"nan\""});
  bad("ratio", "inf", {"ratio: expected a number"});
  bad("ratio", "1e999", {"ratio: expected a number"});
  bad("ratio", "1 2", {"ratio: expected a number"});
  bad("name", "\"open", {"name"});
  bad("ids", "5,9", {"ids: expected a JSON list, got \"5,9\""});
  bad("kinds", "a", {"kinds: expected a JSON list"});
  bad("colour", "blue", {"colour: expected one of red, green, dark_blue, got \"blue\""});
  bad("cuont", "3", {"unknown key \"cuont\"", "did you mean \"count\"?"});
  bad("lr", "3", {"unknown key \"lr\"", "did you mean \"train.lr\"?"});
  bad("train.lrr", "3", {"unknown key \"train.lrr\"", "did you mean \"train.lr\"?"});
  bad("count.x", "3", {"unknown key \"count.x\""});
  bad("train", "{}", {"train is a group"});
  bad("", "3", {"unknown key \"\""});
  bad("train.", "3", {"unknown key \"train.\""});
}

TEST(ListFields, TellsTypeDefaultAndHelp) {
  const auto all = list_fields<Settings>();
  const auto find = [&](const std::string& name) {
    for (const FieldInfo& f : all)
      if (f.name == name) return f;
    ADD_FAILURE() << name << " is not listed";
    return FieldInfo{};
  };
  EXPECT_EQ(all.size(), 18u);
  EXPECT_EQ(find("count").type, "integer");
  EXPECT_EQ(find("count").default_value, "4");
  EXPECT_EQ(find("count").help, "a count");
  EXPECT_EQ(find("ratio").type, "number");
  EXPECT_EQ(find("ratio").default_value, "0.5");
  EXPECT_EQ(find("flag").type, "true|false");
  EXPECT_EQ(find("name").default_value, "x");
  EXPECT_EQ(find("kinds").default_value, "[\"a\"]");
  EXPECT_EQ(find("head_dim").default_value, "null");
  EXPECT_EQ(find("colour").type, "red|green|dark_blue");
  EXPECT_EQ(find("colour").default_value, "red");
  EXPECT_EQ(find("train.lr").default_value, "0.001");
  EXPECT_EQ(find("extra.cap").type, "number");
  // every default can be handed back to --set
  Settings s;
  for (const FieldInfo& f : all)
    if (f.name.rfind("extra.", 0) != 0) set_field(s, f.name, f.default_value, "--set");
  EXPECT_EQ(write_fields(s), write_fields(Settings{}));
}

}  // namespace
}  // namespace hysparse
