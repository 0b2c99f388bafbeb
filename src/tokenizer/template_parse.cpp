#include "tokenizer/template_parse.h"

#include <algorithm>
#include <charconv>
#include <set>

#include "base/error.h"
#include "io/json.h"
#include "tokenizer/template_lexer.h"

namespace hysparse::chat {
namespace {

constexpr int kMaxNesting = 60;
constexpr int kMaxChain = 500;  // of operators, members or filters, one upon the other
constexpr size_t kMaxBytes = 256 << 10;

const std::set<std::string> kFunctions = {"range", "namespace", "raise_exception", "strftime_now", "dict"};
const std::set<std::string> kMethods = {"strip", "lstrip", "rstrip", "split",      "startswith", "endswith",
                                        "upper", "lower",  "title",  "capitalize", "replace",    "items",
                                        "keys",  "values", "get",    "append",     "join",       "find"};
const std::set<std::string> kFilters = {
    "trim", "tojson",     "length",     "count", "list",    "upper",  "lower",  "title", "capitalize",
    "join", "replace",    "default",    "d",     "first",   "last",   "string", "int",   "items",
    "safe", "selectattr", "rejectattr", "map",   "reverse", "unique", "abs",    "float", "sort"};
const std::set<std::string> kTests = {"defined",  "undefined", "none",   "string",  "mapping",
                                      "iterable", "sequence",  "number", "boolean", "integer",
                                      "float",    "true",      "false",  "equalto", "eq",
                                      "ne",       "in",        "odd",    "even",    "sameas"};

class Parser {
 public:
  Parser(std::string_view source, const std::string& where)
      : where_(where), tokens_(lex_template(source, where)) {}

  Block run() {
    Block out = block({});
    if (now().kind != Kind::end) refuse("the tag " + quote_text(now().text) + " without its beginning");
    for (const auto& [name, line] : calls_)
      if (kFunctions.count(name) == 0 && macros_.count(name) == 0)
        throw input_error(fmt::format("{}: line {}", where_, line),
                          "the function " + quote_text(name) + " is not supported");
    return out;
  }

 private:
  using Kind = Lexeme::Kind;
  using E = Expression::Kind;

  [[noreturn]] void refuse(std::string_view what) const {
    throw input_error(fmt::format("{}: line {}", where_, now().line), what);
  }
  const Lexeme& now() const { return tokens_[at_]; }
  const Lexeme& ahead() const { return tokens_[std::min(at_ + 1, tokens_.size() - 1)]; }
  bool is(Kind kind, std::string_view text) const { return now().kind == kind && now().text == text; }
  bool sign(std::string_view s) { return is(Kind::sign, s) && ++at_; }
  bool word(std::string_view s) { return is(Kind::name, s) && ++at_; }
  void want_sign(std::string_view s) {
    if (!sign(s)) refuse(fmt::format("expected {}, got {}", s, shown()));
  }
  std::string shown() const {
    switch (now().kind) {
      case Kind::end:
        return "the end of the template";
      case Kind::tag_end:
        return "the end of the tag";
      case Kind::output_end:
        return "the end of the output";
      default:
        return quote_text(now().text);
    }
  }
  std::string want_name() {
    if (now().kind != Kind::name) refuse("expected a name, got " + shown());
    return tokens_[at_++].text;
  }
  void end_tag() {
    if (now().kind != Kind::tag_end) refuse("expected the end of the tag, got " + shown());
    ++at_;
  }

  // Statements up to a tag that begins with one of `ends` (not consumed but for its opening), or the end.
  Block block(const std::set<std::string>& ends) {
    if (++depth_ > kMaxNesting) refuse("tags nested too deep");
    Block out;
    while (now().kind != Kind::end) {
      auto s = std::make_unique<Statement>();
      if (now().kind == Kind::text) {
        s->text = Text(tokens_[at_++].text);
      } else if (now().kind == Kind::output_begin) {
        ++at_;
        s->kind = Statement::Kind::output;
        s->expression = expression();
        if (now().kind != Kind::output_end) refuse("expected the end of the output, got " + shown());
        ++at_;
      } else {
        ++at_;
        if (ends.count(now().text) != 0) break;
        if (word("generation")) {  // marks answers for training; what is inside counts
          end_tag();
          Block inner = block({"endgeneration"});
          close("endgeneration");
          for (auto& i : inner) out.push_back(std::move(i));
          continue;
        }
        statement(*s);
      }
      out.push_back(std::move(s));
    }
    --depth_;
    return out;
  }
  void close(std::string_view name) {
    if (!word(name)) refuse(fmt::format("expected the tag {}, got {}", name, shown()));
    end_tag();
  }

  void statement(Statement& s) {
    if (word("if")) return condition(s);
    if (word("for")) return loop(s);
    if (word("set")) return assign(s);
    if (word("macro")) return macro(s);
    if (word("break") || word("continue")) {
      if (loops_ == 0) refuse("break or continue outside a loop");
      s.kind = tokens_[at_ - 1].text == "break" ? Statement::Kind::leave : Statement::Kind::next;
      return end_tag();
    }
    if (now().text.starts_with("end") || now().text == "else" || now().text == "elif")
      refuse("the tag " + quote_text(now().text) + " without its beginning");
    refuse("the tag " + shown() + " is not supported");
  }

  void condition(Statement& s) {
    s.kind = Statement::Kind::condition;
    ExpressionPtr test = expression();
    while (true) {
      end_tag();
      Block body = block({"elif", "else", "endif"});
      const bool last = test == nullptr;
      s.branches.emplace_back(std::move(test), std::move(body));
      if (!last && word("elif")) {
        test = expression();
      } else if (!last && word("else")) {
        test = nullptr;
      } else {
        return close("endif");
      }
    }
  }

  void loop(Statement& s) {
    s.kind = Statement::Kind::loop;
    do s.names.push_back(want_name());
    while (sign(","));
    if (s.names.size() > 2) refuse("a loop over more than two names");
    if (!word("in")) refuse("expected in, got " + shown());
    s.expression = either();  // without a conditional: its if is the loop's
    if (word("if")) s.filter = expression();
    if (is(Kind::name, "recursive")) refuse("a recursive loop is not supported");
    end_tag();
    ++loops_;
    s.body = block({"else", "endfor"});
    --loops_;
    if (word("else")) {
      end_tag();
      s.otherwise = block({"endfor"});
    }
    close("endfor");
  }

  void assign(Statement& s) {
    s.kind = Statement::Kind::assign;
    s.names.push_back(want_name());
    if (sign(".")) {
      s.object = true;
      s.names.push_back(want_name());
    } else {
      while (sign(",")) s.names.push_back(want_name());
    }
    if (sign("=")) {
      s.expression = expression();
      return end_tag();
    }
    if (s.names.size() > 1) refuse("expected =, got " + shown());
    end_tag();
    s.body = block({"endset"});
    close("endset");
  }

  void macro(Statement& s) {
    s.kind = Statement::Kind::macro;
    s.names.push_back(want_name());
    macros_.insert(s.names[0]);
    want_sign("(");
    while (!sign(")")) {
      std::string name = want_name();
      s.parameters.emplace_back(std::move(name), sign("=") ? expression() : nullptr);
      if (!sign(",") && !is(Kind::sign, ")")) refuse("expected , or ), got " + shown());
    }
    end_tag();
    s.body = block({"endmacro"});
    close("endmacro");
  }

  // ---- expressions, from what binds least
  static ExpressionPtr make(E kind, std::string name = {}) {
    auto e = std::make_unique<Expression>();
    e->kind = kind;
    e->name = std::move(name);
    return e;
  }
  static ExpressionPtr binary(std::string name, ExpressionPtr a, ExpressionPtr b) {
    ExpressionPtr e = make(E::binary, std::move(name));
    e->parts.push_back(std::move(a));
    e->parts.push_back(std::move(b));
    return e;
  }
  static ExpressionPtr constant(Value v) {
    ExpressionPtr e = make(E::constant);
    e->value = std::move(v);
    return e;
  }

  ExpressionPtr expression() {
    if (++depth_ > kMaxNesting) refuse("expressions nested too deep");
    ExpressionPtr e = either();
    for (int n = 0; word("if"); chain(n)) {
      ExpressionPtr c = make(E::conditional);
      c->parts.push_back(std::move(e));
      c->parts.push_back(either());
      c->parts.push_back(word("else") ? expression() : constant(Value()));
      e = std::move(c);
    }
    --depth_;
    return e;
  }
  void chain(int& length) const {
    if (++length > kMaxChain) refuse("an expression too long");
  }
  ExpressionPtr either() {
    ExpressionPtr e = both();
    for (int n = 0; word("or"); chain(n)) e = binary("or", std::move(e), both());
    return e;
  }
  ExpressionPtr both() {
    ExpressionPtr e = negation();
    for (int n = 0; word("and"); chain(n)) e = binary("and", std::move(e), negation());
    return e;
  }
  ExpressionPtr negation() {
    if (!word("not")) return comparison();
    if (++depth_ > kMaxNesting) refuse("expressions nested too deep");
    ExpressionPtr e = make(E::unary, "not");
    e->parts.push_back(negation());
    --depth_;
    return e;
  }
  ExpressionPtr comparison() {
    ExpressionPtr e = sum();
    bool chained = false;
    while (true) {
      std::string op;
      for (const char* s : {"==", "!=", "<=", ">=", "<", ">"})
        if (is(Kind::sign, s)) op = s;
      const bool negated = is(Kind::name, "not") && ahead().kind == Kind::name && ahead().text == "in";
      if (is(Kind::name, "in")) op = "in";
      if (op.empty() && !negated) return e;
      if (chained) refuse("a chain of comparisons is not supported");
      chained = true;
      at_ += negated ? 2 : 1;
      e = binary(negated ? "in" : op, std::move(e), sum());
      if (negated) {
        ExpressionPtr n = make(E::unary, "not");
        n->parts.push_back(std::move(e));
        e = std::move(n);
      }
    }
  }
  ExpressionPtr left_to_right(std::initializer_list<const char*> signs, ExpressionPtr (Parser::*inner)()) {
    ExpressionPtr e = (this->*inner)();
    for (int n = 0;; chain(n)) {
      const auto found =
          std::find_if(signs.begin(), signs.end(), [&](const char* s) { return is(Kind::sign, s); });
      if (found == signs.end()) return e;
      ++at_;
      e = binary(*found, std::move(e), (this->*inner)());
    }
  }
  ExpressionPtr sum() { return left_to_right({"+", "-"}, &Parser::concatenation); }
  ExpressionPtr concatenation() { return left_to_right({"~"}, &Parser::product); }
  ExpressionPtr product() { return left_to_right({"*", "/", "//", "%"}, &Parser::unary); }
  ExpressionPtr unary() {
    if (is(Kind::sign, "**")) refuse("the operator ** is not supported");
    if (!sign("-")) return filtered(postfix(primary()));
    if (++depth_ > kMaxNesting) refuse("expressions nested too deep");
    ExpressionPtr e = make(E::unary, "-");
    e->parts.push_back(unary());
    --depth_;
    return e;
  }

  ExpressionPtr primary() {
    const Lexeme& t = now();
    switch (t.kind) {
      case Kind::string: {
        std::string text;
        while (now().kind == Kind::string) text += tokens_[at_++].text;
        return constant(Text(text));
      }
      case Kind::integer:
        ++at_;
        return constant(static_cast<int64_t>(std::stoll(t.text)));
      case Kind::real:
        ++at_;
        return constant(std::stod(t.text));
      case Kind::name:
        return named();
      default:
        break;
    }
    if (sign("(")) {
      if (is(Kind::sign, ")")) refuse("a tuple is not supported");
      ExpressionPtr e = expression();
      if (is(Kind::sign, ",")) refuse("a tuple is not supported");
      want_sign(")");
      return e;
    }
    if (sign("[")) {
      ExpressionPtr e = make(E::list);
      while (!sign("]")) {
        e->parts.push_back(expression());
        if (!sign(",") && !is(Kind::sign, "]")) refuse("expected , or ], got " + shown());
      }
      return e;
    }
    if (sign("{")) {
      ExpressionPtr e = make(E::dict);
      while (!sign("}")) {
        e->parts.push_back(expression());
        want_sign(":");
        e->parts.push_back(expression());
        if (!sign(",") && !is(Kind::sign, "}")) refuse("expected , or }, got " + shown());
      }
      return e;
    }
    refuse("expected an expression, got " + shown());
  }

  ExpressionPtr named() {
    const int line = now().line;
    const std::string name = want_name();
    if (name == "true" || name == "True") return constant(true);
    if (name == "false" || name == "False") return constant(false);
    if (name == "none" || name == "None") return constant(nullptr);
    if (!sign("(")) return make(E::name, name);
    calls_.emplace_back(name, line);
    ExpressionPtr e = make(E::call, name);
    arguments(*e);
    return e;
  }

  void arguments(Expression& e) {  // behind the (
    while (!sign(")")) {
      if (now().kind == Kind::name && ahead().kind == Kind::sign && ahead().text == "=") {
        std::string name = want_name();
        ++at_;
        e.named.emplace_back(std::move(name), expression());
      } else {
        e.parts.push_back(expression());
      }
      if (!sign(",") && !is(Kind::sign, ")")) refuse("expected , or ), got " + shown());
    }
  }

  ExpressionPtr postfix(ExpressionPtr e) {
    for (int n = 0;; chain(n)) {
      if (sign(".")) {
        const std::string name = want_name();
        ExpressionPtr outer = make(E::member, name);
        outer->parts.push_back(std::move(e));
        if (sign("(")) {
          if (kMethods.count(name) == 0) refuse("the method " + quote_text(name) + " is not supported");
          outer->kind = E::method;
          arguments(*outer);
        } else {
          outer->parts.push_back(constant(Text(name)));
        }
        e = std::move(outer);
      } else if (sign("[")) {
        e = subscript(std::move(e));
      } else if (is(Kind::sign, "(")) {
        refuse("a call of what is no function");
      } else {
        return e;
      }
    }
  }

  ExpressionPtr subscript(ExpressionPtr object) {
    std::vector<ExpressionPtr> bounds;
    bool colon = false;
    while (true) {
      const bool absent = is(Kind::sign, ":") || is(Kind::sign, "]");
      bounds.push_back(absent ? constant(nullptr) : expression());
      if (!sign(":")) break;
      colon = true;
    }
    want_sign("]");
    if (bounds.size() > 3) refuse("a slice of more than three parts");
    ExpressionPtr e = make(colon ? E::slice : E::member);
    if (!colon && bounds[0]->kind == E::constant && bounds[0]->value.none()) refuse("an empty subscript");
    if (colon)
      while (bounds.size() < 3) bounds.push_back(constant(nullptr));
    e->parts.push_back(std::move(object));
    for (auto& b : bounds) e->parts.push_back(std::move(b));
    return e;
  }

  ExpressionPtr filtered(ExpressionPtr e) {
    for (int n = 0;; chain(n)) {
      if (sign("|")) {
        const std::string name = want_name();
        if (kFilters.count(name) == 0) refuse("the filter " + quote_text(name) + " is not supported");
        ExpressionPtr f = make(E::filter, name);
        f->parts.push_back(std::move(e));
        if (sign("(")) arguments(*f);
        for (const char* by_test : {"selectattr", "rejectattr"})
          if (name == by_test) check_test_argument(*f, 2);
        e = postfix(std::move(f));
      } else if (word("is")) {
        const bool negated = word("not");
        const std::string name = want_name();
        if (kTests.count(name) == 0) refuse("the test " + quote_text(name) + " is not supported");
        ExpressionPtr t = make(E::test, name);
        t->parts.push_back(std::move(e));
        if (sign("("))
          arguments(*t);
        else if (name == "equalto" || name == "eq" || name == "ne" || name == "in" || name == "sameas")
          t->parts.push_back(postfix(primary()));
        e = std::move(t);
        if (negated) {
          ExpressionPtr n = make(E::unary, "not");
          n->parts.push_back(std::move(e));
          e = std::move(n);
        }
      } else {
        return e;
      }
    }
  }
  void check_test_argument(const Expression& f, size_t at) const {
    if (f.parts.size() <= at) return;
    const Expression& name = *f.parts[at];
    if (name.kind != E::constant || !name.value.text() || kTests.count(name.value.as_text().bytes) == 0)
      refuse("a test by name that is not supported in " + quote_text(f.name));
  }

  const std::string& where_;
  std::vector<Lexeme> tokens_;
  size_t at_ = 0;
  int depth_ = 0, loops_ = 0;
  std::set<std::string> macros_;
  std::vector<std::pair<std::string, int>> calls_;
};

}  // namespace

Block parse_template(std::string_view source, const std::string& where) {
  if (source.size() > kMaxBytes)
    throw input_error(where,
                      fmt::format("a chat template of {} bytes is longer than {}", source.size(), kMaxBytes));
  return Parser(source, where).run();
}

}  // namespace hysparse::chat
