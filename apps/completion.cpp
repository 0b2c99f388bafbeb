// hysparse completion: shell completion, made from the declared commands themselves.
#include <CLI/CLI.hpp>
#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "base/error.h"
#include "commands.h"

namespace hysparse {
namespace {

struct OptionEntry {
  std::vector<std::string> longs, shorts;  // without dashes
  std::string description;
  bool takes_value;
};
struct CommandEntry {
  std::string path;  // "" at the root, " tokenizer train"
  std::string description;
  std::vector<std::string> children;  // names
  std::vector<OptionEntry> options;
};

void walk(const CLI::App& app, const std::string& path, std::vector<CommandEntry>& out) {
  CommandEntry entry;
  entry.path = path;
  entry.description = app.get_description();
  for (const CLI::Option* o : app.get_options([](const CLI::Option*) { return true; })) {
    if (o->get_lnames().empty() && o->get_snames().empty()) continue;
    entry.options.push_back(
        {o->get_lnames(), o->get_snames(), o->get_description(), o->get_items_expected_max() > 0});
  }
  const auto children = app.get_subcommands([](const CLI::App* c) { return !c->get_name().empty(); });
  for (const CLI::App* c : children) entry.children.push_back(c->get_name());
  out.push_back(std::move(entry));
  for (const CLI::App* c : children) walk(*c, path + " " + c->get_name(), out);
}

std::string first_line(const std::string& text) {
  return text.substr(0, text.find('\n'));
}
// 'text' for a shell, with the quote itself spelled `quote`.
std::string quoted(const std::string& text, const std::string& quote) {
  std::string out = "'";
  for (const char c : text) out += c == '\'' ? quote : std::string(1, c);
  return out + "'";
}
const std::string kPosixQuote = "'\\''";
const std::string kFishQuote = "\\'";

void add_word(std::string& words, const std::string& word) {
  if (!words.empty()) words += ' ';
  words += word;
}

std::string dashed(const OptionEntry& o) {
  std::string out;
  for (const std::string& s : o.shorts) add_word(out, fmt::format("-{}", s));
  for (const std::string& l : o.longs) add_word(out, fmt::format("--{}", l));
  return out;
}

std::string description_of(const std::vector<CommandEntry>& all, const std::string& path) {
  for (const CommandEntry& c : all)
    if (c.path == path) return first_line(c.description);
  return {};
}

// Both POSIX-like shells find out which command the words so far have reached.
std::string case_of_paths(const std::vector<CommandEntry>& all) {
  std::string out = "    case \"$reached $word\" in\n";
  for (const CommandEntry& c : all)
    if (!c.path.empty()) out += "      \"" + c.path + "\") reached=\"" + c.path + "\" ;;\n";
  return out + "    esac\n";
}

void print_bash(const std::vector<CommandEntry>& all) {
  std::printf("# bash completion of hysparse. Load it: source <(hysparse completion bash)\n");
  std::printf("_hysparse() {\n  local word reached=\"\" options=\"\" commands=\"\" valued=\"\"\n");
  std::printf("  for word in \"${COMP_WORDS[@]:1:COMP_CWORD-1}\"; do\n%s  done\n",
              case_of_paths(all).c_str());
  std::printf("  case \"$reached\" in\n");
  for (const CommandEntry& c : all) {
    std::string options, valued = " ", commands;
    for (const OptionEntry& o : c.options) {
      add_word(options, dashed(o));
      if (o.takes_value) valued += dashed(o) + " ";
    }
    for (const std::string& name : c.children) add_word(commands, name);
    std::printf("    \"%s\")\n      options=\"%s\"\n      commands=\"%s\"\n      valued=\"%s\" ;;\n",
                c.path.c_str(), options.c_str(), commands.c_str(), valued.c_str());
  }
  std::printf(
      "  esac\n"
      "  local now=\"${COMP_WORDS[COMP_CWORD]}\" before=\"${COMP_WORDS[COMP_CWORD-1]}\"\n"
      "  COMPREPLY=()\n"
      "  if [[ $valued == *\" $before \"* ]]; then\n"
      "    return  # a value: file names, by `-o default`\n"
      "  elif [[ $now == -* ]]; then\n"
      "    COMPREPLY=($(compgen -W \"$options\" -- \"$now\"))\n"
      "  elif [[ -n $commands ]]; then\n"
      "    COMPREPLY=($(compgen -W \"$commands\" -- \"$now\"))\n"
      "  fi\n"
      "}\n"
      "complete -o default -F _hysparse hysparse\n");
}

void print_zsh(const std::vector<CommandEntry>& all) {
  std::printf(
      "#compdef hysparse\n# zsh completion of hysparse. Load it: source <(hysparse completion zsh), or save "
      "it as _hysparse in "
      "$fpath\n");
  std::printf("_hysparse() {\n  local word reached=\"\" valued=\"\"\n  local -a options commands\n");
  std::printf("  for word in \"${(@)words[2,CURRENT-1]}\"; do\n%s  done\n", case_of_paths(all).c_str());
  std::printf("  case \"$reached\" in\n");
  const auto described = [](const std::string& name, const std::string& text) {
    std::string colons = name + ":" + first_line(text);
    return fmt::format(" {}", quoted(colons, kPosixQuote));
  };
  for (const CommandEntry& c : all) {
    std::string options, commands, valued = " ";
    for (const OptionEntry& o : c.options) {
      for (const std::string& s : o.shorts) options += described(fmt::format("-{}", s), o.description);
      for (const std::string& l : o.longs) options += described(fmt::format("--{}", l), o.description);
      if (o.takes_value) valued += dashed(o) + " ";
    }
    for (const std::string& name : c.children)
      commands += described(name, description_of(all, c.path + " " + name));
    std::printf("    \"%s\")\n      options=(%s )\n      commands=(%s )\n      valued=\"%s\" ;;\n",
                c.path.c_str(), options.c_str(), commands.c_str(), valued.c_str());
  }
  std::printf(
      "  esac\n"
      "  if [[ $valued == *\" ${words[CURRENT-1]} \"* ]]; then\n"
      "    _files\n"
      "  elif [[ ${words[CURRENT]} == -* ]]; then\n"
      "    _describe -o option options\n"
      "  elif (( ${#commands} )); then\n"
      "    _describe command commands\n"
      "  else\n"
      "    _files\n"
      "  fi\n"
      "}\n"
      "if [[ $funcstack[1] == _hysparse ]]; then\n  _hysparse \"$@\"\nelse\n  compdef _hysparse "
      "hysparse\nfi\n");
}

void print_fish(const std::vector<CommandEntry>& all) {
  std::string paths;
  for (const CommandEntry& c : all)
    if (!c.path.empty()) paths += fmt::format(" {}", quoted(c.path, kFishQuote));
  std::printf("# fish completion of hysparse. Load it: hysparse completion fish | source\n");
  std::printf(
      "function __hysparse_reached\n"
      "  set -l reached ''\n"
      "  for word in (commandline -opc)[2..-1]\n"
      "    if contains -- \"$reached $word\"%s\n"
      "      set reached \"$reached $word\"\n"
      "    end\n"
      "  end\n"
      "  test \"$reached\" = \"$argv[1]\"\n"
      "end\n",
      paths.c_str());
  for (const CommandEntry& c : all) {
    const std::string at =
        "complete -c hysparse -n " + quoted("__hysparse_reached \"" + c.path + "\"", kFishQuote);
    for (const std::string& name : c.children)
      std::printf("%s -f -a %s -d %s\n", at.c_str(), name.c_str(),
                  quoted(description_of(all, c.path + " " + name), kFishQuote).c_str());
    for (const OptionEntry& o : c.options) {
      std::string names;
      for (const std::string& s : o.shorts) names += fmt::format(" -s {}", s);
      for (const std::string& l : o.longs) names += fmt::format(" -l {}", l);
      std::printf("%s%s%s -d %s\n", at.c_str(), names.c_str(), o.takes_value ? " -r" : "",
                  quoted(first_line(o.description), kFishQuote).c_str());
    }
  }
}

}  // namespace

void add_completion(CLI::App& app) {
  auto shell = std::make_shared<std::string>();
  CLI::App& c = *app.add_subcommand("completion", "print completion for bash, zsh or fish");
  c.add_option("shell", *shell, "bash, zsh or fish")
      ->required()
      ->check(CLI::IsMember({"bash", "zsh", "fish"}));
  c.footer("Example: source <(hysparse completion bash)");
  c.callback([shell, &app] {
    std::vector<CommandEntry> all;
    walk(app, "", all);
    if (*shell == "bash")
      print_bash(all);
    else if (*shell == "zsh")
      print_zsh(all);
    else
      print_fish(all);
  });
}

}  // namespace hysparse
