#include "tokenizer/template_run.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <optional>

#include "base/error.h"
#include "tokenizer/template_functions.h"

namespace hysparse::chat {
namespace {

constexpr int kMaxDepth = 600;  // expressions within expressions and macros within macros
constexpr int64_t kMaxRange = 100'000;

enum class Flow { on, next, leave };

class Run {
 public:
  Run(Dict globals, std::time_t now, const RunLimits& limits) : now_(now), limits_(limits) {
    scopes_.emplace_back();
    for (auto& [name, value] : globals) scopes_.back()[name.bytes] = std::move(value);
  }

  Text program(const Block& b) {
    Text out;
    block(b, out);
    return out;
  }

 private:
  using E = Expression::Kind;
  using S = Statement::Kind;
  using Scope = std::map<std::string, Value, std::less<>>;

  void spend() {
    if (++steps_ > limits_.steps)
      throw input_error("chat template", fmt::format("more than {} steps", limits_.steps));
  }
  void print(Text& out, const Text& t) const {
    out.append(t);
    if (out.bytes.size() > limits_.bytes)
      throw input_error("chat template", fmt::format("its text is longer than {} bytes", limits_.bytes));
  }

  // ---- statements
  Flow block(const Block& b, Text& out) {
    for (const auto& s : b) {
      spend();
      const Flow flow = statement(*s, out);
      if (flow != Flow::on) return flow;
    }
    return Flow::on;
  }

  Flow statement(const Statement& s, Text& out) {
    switch (s.kind) {
      case S::text:
        print(out, s.text);
        return Flow::on;
      case S::output:
        print(out, to_text(evaluate(*s.expression)));
        return Flow::on;
      case S::condition:
        for (const auto& [test, body] : s.branches)
          if (test == nullptr || evaluate(*test).truthy()) return block(body, out);
        return Flow::on;
      case S::loop:
        return loop(s, out);
      case S::assign:
        assign(s);
        return Flow::on;
      case S::macro:
        macros_[s.names[0]] = &s;
        return Flow::on;
      case S::next:
        return Flow::next;
      case S::leave:
        return Flow::leave;
    }
    return Flow::on;
  }

  void bind(const std::vector<std::string>& names, const Value& v) {
    if (names.size() == 1) {
      scopes_.back()[names[0]] = v;
      return;
    }
    if (v.as_list().size() != names.size())
      throw input_error("chat template",
                        fmt::format("{} values for {} names", v.as_list().size(), names.size()));
    for (size_t i = 0; i < names.size(); ++i) scopes_.back()[names[i]] = v.as_list()[i];
  }

  void assign(const Statement& s) {
    if (s.object) {
      const Value object = look_up(s.names[0]);
      if (!object.dict()) throw input_error("chat template", s.names[0] + " is no namespace");
      object.set_member(Text(s.names[1]), evaluate(*s.expression));
    } else if (s.expression != nullptr) {
      bind(s.names, evaluate(*s.expression));
    } else {
      Text out;
      block(s.body, out);
      scopes_.back()[s.names[0]] = std::move(out);
    }
  }

  Flow loop(const Statement& s, Text& out) {
    const Value over = evaluate(*s.expression);
    if (over.undefined())
      throw input_error("chat template", "a loop over the undefined " + over.undefined_name());
    const Value all = apply_filter("list", over, {});
    List items;
    scopes_.emplace_back();
    for (const Value& v : all.as_list()) {
      spend();
      if (s.filter == nullptr) {
        items.push_back(v);
        continue;
      }
      bind(s.names, v);
      if (evaluate(*s.filter).truthy()) items.push_back(v);
    }
    scopes_.pop_back();
    if (items.empty()) return block(s.otherwise, out);
    const auto n = static_cast<int64_t>(items.size());
    for (int64_t i = 0; i < n; ++i) {
      spend();
      scopes_.emplace_back();
      const auto k = static_cast<size_t>(i);
      const auto key = [](const char* name) { return Text(name); };
      scopes_.back()["loop"] = Dict{{key("index"), i + 1},
                                    {key("index0"), i},
                                    {key("revindex"), n - i},
                                    {key("revindex0"), n - i - 1},
                                    {key("first"), i == 0},
                                    {key("last"), i == n - 1},
                                    {key("length"), n},
                                    {key("previtem"), i > 0 ? items[k - 1] : Value()},
                                    {key("nextitem"), i + 1 < n ? items[k + 1] : Value()}};
      bind(s.names, items[k]);
      const Flow flow = block(s.body, out);
      scopes_.pop_back();
      if (flow == Flow::leave) break;
    }
    return Flow::on;
  }

  // ---- expressions
  Value look_up(std::string_view name) const {
    for (auto scope = scopes_.rbegin(); scope != scopes_.rend(); ++scope) {
      const auto it = scope->find(name);
      if (it != scope->end()) return it->second;
    }
    // Templates ask whether a function is there before they call it.
    if (name == "strftime_now" || name == "raise_exception" || macros_.find(name) != macros_.end())
      return true;
    return Undefined{std::string(name)};
  }

  Arguments arguments(const Expression& e, size_t first) {
    Arguments out;
    for (size_t i = first; i < e.parts.size(); ++i) out.by_place.push_back(evaluate(*e.parts[i]));
    for (const auto& [name, v] : e.named) out.by_name.emplace_back(name, evaluate(*v));
    return out;
  }

  Value evaluate(const Expression& e) {
    spend();
    if (++depth_ > kMaxDepth) throw input_error("chat template", "expressions or macros nested too deep");
    Value out = compute(e);
    --depth_;
    return out;
  }

  Value compute(const Expression& e) {
    switch (e.kind) {
      case E::constant:
        return e.value;
      case E::name:
        return look_up(e.name);
      case E::list:
        return arguments(e, 0).by_place;
      case E::dict: {
        const Value out{Dict()};
        for (size_t i = 0; i < e.parts.size(); i += 2)
          out.set_member(evaluate(*e.parts[i]).as_text(), evaluate(*e.parts[i + 1]));
        return out;
      }
      case E::member: {
        const Value object = evaluate(*e.parts[0]);
        return item(object, evaluate(*e.parts[1]));
      }
      case E::slice: {
        const std::vector<Value> p = arguments(e, 0).by_place;
        return slice(p[0], p[1], p[2], p[3]);
      }
      case E::call:
        return call(e);
      case E::method: {
        const Value object = evaluate(*e.parts[0]);
        return apply_method(e.name, object, arguments(e, 1));
      }
      case E::filter: {
        const Value v = evaluate(*e.parts[0]);
        return apply_filter(e.name, v, arguments(e, 1));
      }
      case E::test: {
        const Value v = evaluate(*e.parts[0]);
        return apply_test(e.name, v, arguments(e, 1));
      }
      case E::unary: {
        const Value v = evaluate(*e.parts[0]);
        if (e.name == "not") return !v.truthy();
        return v.real() ? Value(-v.as_real()) : Value(-v.as_integer());
      }
      case E::binary:
        return binary(e);
      case E::conditional:
        return evaluate(*e.parts[evaluate(*e.parts[1]).truthy() ? 0 : 2]);
    }
    return {};
  }

  Value binary(const Expression& e) {
    const std::string& op = e.name;
    Value a = evaluate(*e.parts[0]);
    if (op == "or") return a.truthy() ? a : evaluate(*e.parts[1]);
    if (op == "and") return a.truthy() ? evaluate(*e.parts[1]) : a;
    const Value b = evaluate(*e.parts[1]);
    if (op == "==") return equal(a, b);
    if (op == "!=") return !equal(a, b);
    if (op == "in") return contains(b, a);
    if (op == "<") return compare(a, b) < 0;
    if (op == "<=") return compare(a, b) <= 0;
    if (op == ">") return compare(a, b) > 0;
    if (op == ">=") return compare(a, b) >= 0;
    if (op == "~" || (op == "+" && a.text())) {
      Text out = to_text(a);
      if (op == "+") (void)b.as_text();  // Python adds texts to texts alone
      print(out, to_text(b));
      return out;
    }
    if (op == "+" && a.list()) {
      List out = a.as_list();
      out.insert(out.end(), b.as_list().begin(), b.as_list().end());
      if (out.size() > static_cast<size_t>(kMaxRange)) throw input_error("chat template", "a list too long");
      return out;
    }
    return arithmetic(op, a, b);
  }

  static Value arithmetic(const std::string& op, const Value& a, const Value& b) {
    if (op == "/" || a.real() || b.real()) {
      const double x = a.as_real(), y = b.as_real();
      if ((op == "/" || op == "//" || op == "%") && y == 0)
        throw input_error("chat template", "a division by zero");
      if (op == "+") return x + y;
      if (op == "-") return x - y;
      if (op == "*") return x * y;
      if (op == "/") return x / y;
      if (op == "//") return std::floor(x / y);
      return x - y * std::floor(x / y);
    }
    const int64_t x = a.as_integer(), y = b.as_integer();
    int64_t out = 0;
    bool over = false;
    if (op == "+") {
      over = __builtin_add_overflow(x, y, &out);
    } else if (op == "-") {
      over = __builtin_sub_overflow(x, y, &out);
    } else if (op == "*") {
      over = __builtin_mul_overflow(x, y, &out);
    } else {
      if (y == 0) throw input_error("chat template", "a division by zero");
      if (y == -1)
        return op == "%" ? Value(int64_t(0)) : Value(static_cast<int64_t>(0 - static_cast<uint64_t>(x)));
      const int64_t quotient = x / y - ((x % y != 0) && ((x < 0) != (y < 0)) ? 1 : 0);
      return op == "%" ? x - quotient * y : quotient;
    }
    if (over) throw input_error("chat template", "a number too large");
    return out;
  }

  Value call(const Expression& e) {
    const Arguments a = arguments(e, 0);
    if (const auto m = macros_.find(e.name); m != macros_.end()) return expand(*m->second, a);
    if (e.name == "raise_exception") throw input_error("chat template", to_text(a.want(0, e.name)).bytes);
    if (e.name == "namespace" || e.name == "dict") {
      Dict out;
      for (const auto& [name, v] : a.by_name) out.emplace_back(Text(name), v);
      return out;
    }
    if (e.name == "strftime_now") {
      char buffer[200];
      std::tm parts{};
      gmtime_r(&now_, &parts);
      const size_t n =
          std::strftime(buffer, sizeof buffer, a.want(0, e.name).as_text().bytes.c_str(), &parts);
      return Text(std::string_view(buffer, n));
    }
    if (e.name == "range") {
      const bool both = a.by_place.size() > 1;
      const int64_t begin = both ? a.by_place[0].as_integer() : 0,
                    end = a.want(both ? 1 : 0, "range").as_integer();
      const int64_t step = a.by_place.size() > 2 ? a.by_place[2].as_integer() : 1;
      if (step == 0) throw input_error("chat template", "a range of step 0");
      List out;
      for (int64_t i = begin; step > 0 ? i < end : i > end; i += step) {
        if (static_cast<int64_t>(out.size()) >= kMaxRange)
          throw input_error("chat template", "a range too long");
        spend();
        out.emplace_back(i);
      }
      return out;
    }
    throw input_error("chat template", "the macro " + e.name + " is called before it is defined");
  }

  Value expand(const Statement& macro, const Arguments& a) {
    if (++depth_ > kMaxDepth || ++expanding_ > kMaxMacros)
      throw input_error("chat template", "macros nested too deep");
    if (a.by_place.size() > macro.parameters.size())
      throw input_error("chat template", "too many arguments for the macro " + macro.names[0]);
    Scope scope;
    for (size_t i = 0; i < macro.parameters.size(); ++i) {
      const auto& [name, otherwise] = macro.parameters[i];
      Value v = a.at(i, name);
      if (v.undefined() && otherwise != nullptr) v = evaluate(*otherwise);
      scope[name] = std::move(v);
    }
    // A macro sees the outermost names and its own.
    std::vector<Scope> outer(std::make_move_iterator(scopes_.begin() + 1),
                             std::make_move_iterator(scopes_.end()));
    scopes_.resize(1);
    scopes_.push_back(std::move(scope));
    Text out;
    block(macro.body, out);
    scopes_.resize(1);
    for (Scope& s : outer) scopes_.push_back(std::move(s));
    --depth_;
    --expanding_;
    return out;
  }

  static constexpr int kMaxMacros = 40;
  std::time_t now_;
  const RunLimits& limits_;
  std::vector<Scope> scopes_;
  std::map<std::string, const Statement*, std::less<>> macros_;
  int64_t steps_ = 0;
  int depth_ = 0, expanding_ = 0;
};

}  // namespace

Text run_template(const Block& program, Dict globals, std::time_t now, const RunLimits& limits) {
  return Run(std::move(globals), now, limits).program(program);
}

}  // namespace hysparse::chat
