// Internal to the tokenizer: the syntax tree of a chat template.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tokenizer/template_value.h"

namespace hysparse::chat {

struct Expression;
using ExpressionPtr = std::unique_ptr<Expression>;

struct Expression {
  enum class Kind {
    constant,    // value
    name,        // name
    list,        // parts
    dict,        // parts: key, value, key, value
    member,      // parts[0] [ parts[1] ]
    slice,       // parts[0] [ parts[1] : parts[2] : parts[3] ]; absent ones are constants none
    call,        // name(parts, named): a function or a macro
    method,      // parts[0].name(parts[1..], named)
    filter,      // parts[0] | name(parts[1..], named)
    test,        // parts[0] is name(parts[1..])
    unary,       // name: not, -
    binary,      // name: or and + - * / // % ~ == != < <= > >= in
    conditional  // parts[0] if parts[1] else parts[2]
  } kind = Kind::constant;
  std::string name;
  Value value;
  std::vector<ExpressionPtr> parts;
  std::vector<std::pair<std::string, ExpressionPtr>> named;
};

struct Statement;
using Block = std::vector<std::unique_ptr<Statement>>;

struct Statement {
  enum class Kind {
    text,       // text
    output,     // {{ expression }}
    condition,  // branches: (condition, body); a null condition is else
    loop,       // for names in expression (if filter): body, or otherwise
    assign,     // set names = expression; set object.name = expression; set name: body
    macro,      // names[0](parameters)
    next,       // continue
    leave       // break
  } kind = Kind::text;
  Text text;
  ExpressionPtr expression, filter;
  std::vector<std::string> names;  // assign with two names and object: object.name
  bool object = false;
  std::vector<std::pair<ExpressionPtr, Block>> branches;
  std::vector<std::pair<std::string, ExpressionPtr>> parameters;
  Block body, otherwise;
};

// Error(input) naming `where`, the line and the construct: syntax errors, and whatever is outside the subset.
Block parse_template(std::string_view source, const std::string& where);

}  // namespace hysparse::chat
