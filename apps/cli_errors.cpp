#include "cli_errors.h"

#include <CLI/CLI.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "io/json.h"

namespace hysparse {
namespace {

// The command that was being read and its path, "hysparse data prepare".
struct Command {
  const CLI::App* app;
  std::string path;
};
Command deepest(const CLI::App& app) {
  Command c{&app, app.get_name()};
  for (auto below = app.get_subcommands(); !below.empty(); below = c.app->get_subcommands()) {
    c.app = below.back();
    c.path += " " + c.app->get_name();
  }
  return c;
}

std::vector<std::string> flag_names(const CLI::App& app) {
  std::vector<std::string> names;
  for (const CLI::Option* o : app.get_options())
    for (const std::string& name : o->get_lnames()) names.push_back("--" + name);
  return names;
}

// The option that a message of the parser begins with or, after `prefix`, goes on with.
const CLI::Option* option_of(const CLI::App& app, std::string_view message) {
  const CLI::Option* found = nullptr;
  for (const CLI::Option* o : app.get_options())
    if (message.starts_with(o->get_name()) && (!found || o->get_name().size() > found->get_name().size()))
      found = o;
  return found;
}

std::string value_text(const CLI::Option& o) {
  const std::string type = o.get_type_name();
  if (type.starts_with("UINT")) return "a whole number from 0";
  if (type.starts_with("INT")) return "a whole number";
  if (type.starts_with("FLOAT")) return "a number";
  return "a value";
}

std::string between(std::string_view text, std::string_view open, std::string_view close) {
  const size_t begin = text.find(open);
  if (begin == std::string_view::npos) return {};
  const size_t from = begin + open.size(), end = close.empty() ? text.size() : text.find(close, from);
  return std::string(text.substr(from, end == std::string_view::npos ? end : end - from));
}

// "0.000000 to 1797...000" -> "at least 0"
std::string range_text(const std::string& range) {
  const std::string low = range.substr(0, range.find(" to ")), high = between(range, " to ", "");
  const auto plain = [](std::string number) {
    if (number.find('.') != std::string::npos) number.erase(number.find_last_not_of('0') + 1);
    if (number.ends_with('.')) number.pop_back();
    return number;
  };
  return high.size() > 20 ? "at least " + plain(low) : plain(low) + " to " + plain(high);
}

std::string spaced(std::string list) {
  for (size_t i = 0; (i = list.find(',', i)) != std::string::npos; i += 2) list.replace(i, 1, ", ");
  return list;
}

Error unexpected(const Command& c, const std::string& first, const std::string& see) {
  if (!first.starts_with('-') || first == "-")
    return input_error(c.path, "nothing is expected where " + quote_text(first) + " stands", see);
  const std::string flag = first.substr(0, first.find('='));
  const std::string near = nearest_name(flag, flag_names(*c.app));
  return input_error(c.path, "has no flag " + flag, near.empty() ? see : "did you mean " + near + "?");
}

}  // namespace

Error command_line_error(const CLI::App& app, const CLI::ParseError& e) {
  const Command c = deepest(app);
  const std::string see = "see " + c.path + " --help", text = e.what();
  const std::vector<std::string> rest = c.app->remaining(true);
  if (dynamic_cast<const CLI::ExtrasError*>(&e) && !rest.empty()) return unexpected(c, rest.front(), see);
  if (dynamic_cast<const CLI::RequiredError*>(&e)) {
    // A misspelled flag is why one is missing.
    for (const std::string& word : rest)
      if (word.starts_with('-') && word.size() > 1 && (word[1] < '0' || word[1] > '9'))
        return unexpected(c, word, see);
    if (const CLI::Option* o = option_of(*c.app, text))
      return input_error(c.path, o->get_name() + " is missing", see);
    std::string names;
    for (const CLI::App* below : c.app->get_subcommands([](const CLI::App*) { return true; }))
      names += (names.empty() ? "" : ", ") + below->get_name();
    return input_error(c.path, "a command is missing, one of " + names, see);
  }
  if (dynamic_cast<const CLI::ArgumentMismatch*>(&e)) {
    const std::string got = between(text, "but received ", "");
    for (const CLI::Option* o : c.app->get_options()) {
      if (text.find(o->get_name()) == std::string::npos) continue;
      if (o->get_items_expected_max() == 0) return input_error(o->get_name(), "takes no value", see);
      if (text.find("At Most") == std::string::npos)
        return expected_error(o->get_name(), value_text(*o), "none", see);
      return expected_error(o->get_name(), "one value", got.empty() ? "several" : got, see);
    }
  }
  if (dynamic_cast<const CLI::ConversionError*>(&e)) {
    const std::string_view message = text;
    constexpr std::string_view kPrefix = "Could not convert: ";
    if (message.starts_with(kPrefix))
      if (const CLI::Option* o = option_of(*c.app, message.substr(kPrefix.size())))
        return expected_error(o->get_name(), value_text(*o), quote_text(between(text, " = ", "")), see);
    if (const CLI::Option* o = option_of(*c.app, message))
      return input_error(o->get_name(), "takes no value", see);
  }
  if (dynamic_cast<const CLI::ValidationError*>(&e))
    if (const CLI::Option* o = option_of(*c.app, text)) {
      const std::string said = text.substr(std::min(text.size(), o->get_name().size() + 2));
      if (said.find(" not in range ") != std::string::npos)
        return expected_error(o->get_name(), range_text(between(said, " not in range ", "")),
                              between(said, "Value ", " not in"), see);
      if (const size_t at = said.find(" not in {"); at != std::string::npos)
        return expected_error(o->get_name(), "one of " + spaced(between(said, " not in {", "}")),
                              quote_text(said.substr(0, at)), see);
      return input_error(o->get_name(), said, see);
    }
  if (dynamic_cast<const CLI::ExcludesError*>(&e))
    if (const CLI::Option* o = option_of(*c.app, text))
      return input_error(o->get_name(), "cannot be given together with " + between(text, " excludes ", ""),
                         see);
  return input_error(c.path, text, see);
}

}  // namespace hysparse
