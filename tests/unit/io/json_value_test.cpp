#include "io/json_value.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <string>

#include "support.h"

namespace hysparse {
namespace {

using namespace testing_io;
using namespace std::string_literals;

void refused(const std::string& text, const std::vector<std::string>& parts) {
  std::vector<std::string> all = parts;
  all.insert(all.begin(), "f.json");
  expect_input_error(
      all, [&] { parse_json(text, "f.json"); }, text.substr(0, 60));
}

TEST(ParseJson, KeepsValuesAndTheOrderOfKeys) {
  const Json j = parse_json(
      " {\"z\": 1, \"a\": [true, null, -2, 18446744073709551615, 1.5e3], \"m\": {\"\": "
      "\"\\u00e9\\ud83d\\ude00\"}}\n",
      "f.json");
  std::string keys;
  for (const auto& item : j.items()) keys += item.key();
  EXPECT_EQ(keys, "zam");
  EXPECT_EQ(j["z"].get<int64_t>(), 1);
  EXPECT_EQ(j["a"][2].get<int64_t>(), -2);
  EXPECT_EQ(j["a"][3].get<uint64_t>(), std::numeric_limits<uint64_t>::max());
  EXPECT_EQ(j["a"][4].get<double>(), 1500.0);
  EXPECT_EQ(j["m"][""].get<std::string>(), "\xc3\xa9\xf0\x9f\x98\x80");
  EXPECT_EQ(parse_json("7", "f.json").get<int>(), 7);
  EXPECT_EQ(parse_json("\"t\"", "f.json").get<std::string>(), "t");
}

TEST(ParseJson, RefusesWhatIsNotOneDocument) {
  refused("", {"empty"});
  refused(" \n\t ", {"empty"});
  refused("{} {}", {"line 1, column 4"});
  refused("{}x", {"not valid JSON"});
  refused("1 2", {"not valid JSON"});
  refused("{}\0{}"s, {"NUL"});
  refused("{}\0"s, {"NUL"});
  refused("\0"s, {"NUL"});
  refused("{\"a\0b\": 1}"s, {"NUL"});
  refused("{\"a\": 1,}", {"not valid JSON"});
  refused("[1,]", {"not valid JSON"});
  refused("{\"a\": 1", {"not valid JSON"});
  refused("[", {"not valid JSON"});
  refused("\"abc", {"not valid JSON"});
  refused("{a: 1}", {"not valid JSON"});
  refused("{'a': 1}", {"not valid JSON"});
  refused("{\n \"a\": 1\n \"b\": 2}", {"line 3"});
  refused("// note\n{}", {"not valid JSON"});
  refused("01", {"not valid JSON"});
  refused("+1", {"not valid JSON"});
  refused(".5", {"not valid JSON"});
  refused("0x10", {"not valid JSON"});
}

TEST(ParseJson, RefusesNumbersThatAreNone) {
  for (const char* text : {"NaN", "nan", "Infinity", "-Infinity", "[1, NaN]", "{\"a\": -Infinity}"})
    refused(text, {"not valid JSON"});
  refused("1e400", {"1e400"});
  refused("[-1e999]", {"not valid JSON"});
  EXPECT_EQ(parse_json("1e-400", "f.json").get<double>(), 0.0);
}

TEST(ParseJson, RefusesDuplicateKeys) {
  refused("{\"a\": 1, \"a\": 1}", {"duplicate key \"a\""});
  refused("{\"x\": {\"b\": 1, \"c\": 2, \"b\": 3}}", {"duplicate key \"b\""});
  refused("{\"a\": 1, \"\\u0061\": 2}", {"duplicate key \"a\""});
  EXPECT_EQ(parse_json("[{\"a\": 1}, {\"a\": {\"a\": 2}}]", "f.json")[1]["a"]["a"].get<int>(), 2);
  std::string many = "{";  // past the point where the keys are hashed
  for (int i = 0; i < 1000; ++i) many += "\"k" + std::to_string(i) + "\": 0, ";
  EXPECT_EQ(parse_json(many + "\"end\": 0}", "f.json").size(), 1001u);
  refused(many + "\"k0\": 0}", {"duplicate key \"k0\""});
  refused(many + "\"k999\": 0}", {"duplicate key \"k999\""});
}

TEST(ParseJson, RefusesInvalidUnicode) {
  for (const char* bad : {"\x80", "\xc0\xaf", "\xc3", "\xe2\x82", "\xed\xa0\x80", "\xf4\x90\x80\x80",
                          "\xf8\x88\x80\x80\x80", "\xff"}) {
    refused("\""s + bad + "\"", {"not valid JSON"});
    refused("{\""s + bad + "\": 1}", {"not valid JSON"});
  }
  for (const char* bad : {"\\ud800", "\\udc00", "\\ud800\\ud800", "\\ud800x", "\\u12", "\\x41"})
    refused("\""s + bad + "\"", {"not valid JSON"});
  // what came is shown without passing broken bytes on to the terminal
  try {
    parse_json("\"ab\xff\"", "f.json");
    FAIL();
  } catch (const Error& e) {
    EXPECT_EQ(std::string(e.what()).find('\xff'), std::string::npos);
    EXPECT_NE(std::string(e.what()).find("\\xff"), std::string::npos);
  }
}

TEST(ParseJson, DepthIsLimitedAndNeverTheStacksBusiness) {
  const auto nested = [](int n) {
    return std::string(static_cast<size_t>(n), '[') + std::string(static_cast<size_t>(n), ']');
  };
  EXPECT_NO_THROW(parse_json(nested(64), "f.json"));
  refused(nested(65), {"deeper than 64"});
  refused(std::string(20'000'000, '['), {"deeper than 64"});
  std::string objects;
  for (int i = 0; i < 100000; ++i) objects += "{\"a\":";
  refused(objects, {"deeper than 64"});
}

TEST(ParseJson, MessagesStayShort) {
  try {
    parse_json("\"" + std::string(1'000'000, 'a'), "f.json");
    FAIL();
  } catch (const Error& e) {
    EXPECT_LT(std::string(e.what()).size(), 1000u);
  }
  try {
    parse_json("{\"" + std::string(1'000'000, 'a') + "\": 1, \"" + std::string(1'000'000, 'a') + "\": 1}",
               "f.json");
    FAIL();
  } catch (const Error& e) {
    EXPECT_LT(std::string(e.what()).size(), 1000u);
  }
}

TEST(ReadJsonFile, NamesTheFile) {
  const TempDir dir;
  put(dir / "good.json", "{\"a\": [1]}");
  EXPECT_EQ(read_json_file(dir / "good.json")["a"][0].get<int>(), 1);
  put(dir / "bad.json", "{\"a\": }");
  expect_input_error({(dir / "bad.json").string(), "line 1"}, [&] { read_json_file(dir / "bad.json"); });
  expect_input_error({(dir / "none.json").string()}, [&] { read_json_file(dir / "none.json"); });
  expect_input_error({"folder"}, [&] { read_json_file(dir.path()); });
}

TEST(DumpJson, WritesWhatParseReadsBack) {
  Json j = Json::object();
  j["z"] = 0.1;
  j["a"] = {1, -2, 1e-10, 1e22, 5e-324};
  j["text"] = "q\"\\\n\x01 \xc3\xa9";
  const std::string text = dump_json(j);
  EXPECT_EQ(text.back(), '\n');
  EXPECT_EQ(parse_json(text, "f"), j);
  const std::string line = dump_json(j, -1);
  EXPECT_EQ(line.find('\n'), std::string::npos);
  EXPECT_EQ(parse_json(line, "f"), j);
  EXPECT_LT(line.find("\"z\""), line.find("\"a\""));
}

TEST(DumpJson, RefusesWhatIsNotJson) {
  Json j = Json::array();
  j.push_back({{"deep", std::numeric_limits<double>::quiet_NaN()}});
  expect_error(ErrorKind::failure, {"NaN"}, [&] { dump_json(j); });
  expect_error(ErrorKind::failure, {"NaN"}, [&] { dump_json(Json(HUGE_VAL)); });
  expect_error(ErrorKind::failure, {"UTF-8"}, [&] { dump_json(Json("\xff")); });
}

}  // namespace
}  // namespace hysparse
