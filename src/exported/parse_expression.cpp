// The parser of expressions, for both forms.
#include "exported/expression.h"

#include <algorithm>
#include <cctype>
#include <limits>
#include <map>
#include <string_view>
#include <utility>

#include "tutti/core/error.h"

namespace tutti::exported {
namespace {

constexpr int max_depth = 200;

bool begins_name(char c) {
  return std::isalpha(static_cast<unsigned char>(c)) != 0 || c == '_';
}

bool is_digit(char c) {
  return std::isdigit(static_cast<unsigned char>(c)) != 0;
}

}  // namespace

/// A recursive-descent parser. The functions are in the order of precedence, lowest first.
class Expression::Parser {
 public:
  explicit Parser(const std::string& text) : text_(text) {}

  Expression run() {
    Expression result = disjunction();
    skip();
    if (place_ != text_.size()) fail("unexpected text");
    return result;
  }

 private:
  using Op = Operation;

  [[noreturn]] void fail(const std::string& why) const {
    throw CheckpointError("cannot parse the size expression '" +
                          (text_.size() > 200 ? text_.substr(0, 200) + "..." : text_) + "': " + why + " at character " +
                          std::to_string(place_));
  }

  void skip() {
    while (place_ < text_.size() && std::isspace(static_cast<unsigned char>(text_[place_])) != 0) ++place_;
  }

  bool take(std::string_view symbol) {
    skip();
    if (text_.compare(place_, symbol.size(), symbol) != 0) return false;
    place_ += symbol.size();
    return true;
  }

  bool take_word(std::string_view word) {
    skip();
    const std::size_t end = place_ + word.size();
    if (text_.compare(place_, word.size(), word) != 0) return false;
    if (end < text_.size() && (begins_name(text_[end]) || is_digit(text_[end]))) return false;
    place_ = end;
    return true;
  }

  void expect(std::string_view symbol) {
    if (!take(symbol)) fail("expected '" + std::string(symbol) + "'");
  }

  // Limits the height of the tree, because the functions that visit it are recursive.
  void add_operand(Expression& to, Expression operand) const {
    to.height_ = std::max(to.height_, operand.height_ + 1);
    if (to.height_ > max_depth) fail("too many levels of operators");
    to.size_ += operand.size_;
    to.operands_.push_back(std::move(operand));
  }

  Expression of(Op op, std::vector<Expression> operands) const {
    Expression made;
    made.operation_ = op;
    for (Expression& operand : operands) add_operand(made, std::move(operand));
    return made;
  }

  Expression binary(Op op, Expression left, Expression right) const {
    std::vector<Expression> operands;
    operands.push_back(std::move(left));
    operands.push_back(std::move(right));
    return of(op, std::move(operands));
  }

  Expression disjunction() {
    Expression left = conjunction();
    while (take_word("or")) left = joined(Op::logical_or, std::move(left), conjunction());
    return left;
  }

  Expression conjunction() {
    Expression left = negation();
    while (take_word("and")) left = joined(Op::logical_and, std::move(left), negation());
    return left;
  }

  // Appends to the operands of `left` if it has the same operator, so a long chain is not a deep tree.
  Expression joined(Op op, Expression left, Expression right) const {
    if (left.operation_ != op) left = of(op, {std::move(left)});
    add_operand(left, std::move(right));
    return left;
  }

  Expression negation() {
    const Level level(*this);
    if (take_word("not")) return of(Op::logical_not, {negation()});
    return comparison();
  }

  Expression comparison() {
    Expression left = sum();
    const auto op = comparison_operator();
    if (!op) return left;
    Expression right = sum();
    Expression all = binary(*op, left, right);
    // Python's chain a <= b < c means a <= b and b < c. The copies of b are limited by the length of the text, because
    // a chain in a chain in a chain would have exponentially many.
    while (const auto next = comparison_operator()) {
      copied_ += right.size_;
      if (copied_ > text_.size()) fail("too many chains of comparisons inside others");
      Expression third = sum();
      all = joined(Op::logical_and, std::move(all), binary(*next, std::move(right), third));
      right = std::move(third);
    }
    return all;
  }

  std::optional<Op> comparison_operator() {
    static const std::vector<std::pair<std::string_view, Op>> operators = {
        {"==", Op::equal},         {"!=", Op::unequal}, {"<=", Op::less_equal},
        {">=", Op::greater_equal}, {"<", Op::less},     {">", Op::greater}};
    for (const auto& [symbol, op] : operators) {
      if (take(symbol)) return op;
    }
    return std::nullopt;
  }

  Expression sum() {
    Expression left = product();
    for (;;) {
      if (take("+")) {
        left = joined(Op::add, std::move(left), product());
      } else if (take("-")) {
        left = joined(Op::add, std::move(left), of(Op::negate, {product()}));
      } else {
        return left;
      }
    }
  }

  Expression product() {
    Expression left = factor();
    for (;;) {
      if (take("//")) {
        left = binary(Op::floor_divide, std::move(left), factor());
      } else if (take("/")) {
        left = binary(Op::divide, std::move(left), factor());
      } else if (take("%")) {
        left = binary(Op::modulo, std::move(left), factor());
      } else if (text_.compare(place_, 2, "**") != 0 && take("*")) {
        left = joined(Op::multiply, std::move(left), factor());
      } else {
        return left;
      }
    }
  }

  Expression factor() {
    const Level level(*this);
    if (take("-")) return of(Op::negate, {factor()});
    if (take("+")) return factor();
    Expression base = primary();
    if (take("**")) return binary(Op::power, std::move(base), factor());
    return base;
  }

  Expression primary() {
    skip();
    if (place_ >= text_.size()) fail("unexpected end");
    if (take("(")) {
      Expression inner = disjunction();
      expect(")");
      return inner;
    }
    if (is_digit(text_[place_])) return number();
    if (!begins_name(text_[place_])) fail("expected a number or a name");
    const std::string word = name();
    const std::size_t end = place_;
    if (take("(")) return call(word);
    place_ = end;
    if (word == "True" || word == "true") return constant(1);
    if (word == "False" || word == "false") return constant(0);
    return place(word);
  }

  static Expression constant(std::int64_t number) {
    Expression made;
    made.number_ = number;
    return made;
  }

  Expression number() {
    std::int64_t value = 0;
    while (place_ < text_.size() && is_digit(text_[place_])) {
      if (__builtin_mul_overflow(value, 10, &value) || __builtin_add_overflow(value, text_[place_] - '0', &value)) {
        fail("a number that is too large");
      }
      ++place_;
    }
    if (place_ < text_.size() && text_[place_] == '.') fail("a number that is not an integer");
    return constant(value);
  }

  std::string name() {
    const std::size_t begin = place_;
    while (place_ < text_.size() && (begins_name(text_[place_]) || is_digit(text_[place_]))) ++place_;
    return text_.substr(begin, place_ - begin);
  }

  std::string quoted() {
    skip();
    if (place_ >= text_.size() || (text_[place_] != '\'' && text_[place_] != '"')) fail("expected a quoted name");
    const auto end = text_.find(text_[place_], place_ + 1);
    if (end == std::string::npos) fail("an unclosed quote");
    const std::string inside = text_.substr(place_ + 1, end - place_ - 1);
    place_ = end + 1;
    return inside;
  }

  // A symbol, or a whole term like L['x'].size()[0].
  Expression place(const std::string& word) {
    Expression made;
    made.operation_ = Op::name;
    made.name_ = word;
    for (;;) {
      const std::size_t start = place_;
      if (take("[")) {
        skip();
        if (place_ < text_.size() && is_digit(text_[place_])) {
          number();
        } else {
          quoted();
        }
        expect("]");
      } else if (take(".")) {
        if (name().empty()) fail("expected a name");
        if (take("(")) expect(")");
      } else {
        place_ = start;
        return made;
      }
      made.name_ += text_.substr(start, place_ - start);
    }
  }

  Expression call(const std::string& function) {
    const Level level(*this);
    if (function == "Symbol") {
      Expression made;
      made.operation_ = Op::name;
      made.name_ = quoted();
      // Properties: positive=True, integer=True.
      while (take(",")) {
        skip();
        if (name().empty()) fail("expected a property");
        expect("=");
        skip();
        if (name().empty()) fail("expected a property");
      }
      expect(")");
      return made;
    }
    std::vector<Expression> arguments;
    if (!take(")")) {
      do arguments.push_back(disjunction());
      while (take(","));
      expect(")");
    }
    return applied(function, std::move(arguments));
  }

  Expression applied(const std::string& function, std::vector<Expression> arguments) {
    struct Function {
      Op op;
      std::size_t least, most;
    };
    constexpr std::size_t any = std::numeric_limits<std::size_t>::max();
    static const std::map<std::string, Function> functions = {{"Add", {Op::add, 1, any}},
                                                              {"Mul", {Op::multiply, 1, any}},
                                                              {"Pow", {Op::power, 2, 2}},
                                                              {"Max", {Op::max, 1, any}},
                                                              {"Min", {Op::min, 1, any}},
                                                              {"max", {Op::max, 1, any}},
                                                              {"min", {Op::min, 1, any}},
                                                              {"Mod", {Op::modulo, 2, 2}},
                                                              {"PythonMod", {Op::modulo, 2, 2}},
                                                              {"FloorDiv", {Op::floor_divide, 2, 2}},
                                                              {"CleanDiv", {Op::floor_divide, 2, 2}},
                                                              {"IntTrueDiv", {Op::divide, 2, 2}},
                                                              {"PowByNatural", {Op::power, 2, 2}},
                                                              {"Eq", {Op::equal, 2, 2}},
                                                              {"Equality", {Op::equal, 2, 2}},
                                                              {"Ne", {Op::unequal, 2, 2}},
                                                              {"Unequality", {Op::unequal, 2, 2}},
                                                              {"LessThan", {Op::less_equal, 2, 2}},
                                                              {"StrictLessThan", {Op::less, 2, 2}},
                                                              {"GreaterThan", {Op::greater_equal, 2, 2}},
                                                              {"StrictGreaterThan", {Op::greater, 2, 2}},
                                                              {"And", {Op::logical_and, 1, any}},
                                                              {"Or", {Op::logical_or, 1, any}},
                                                              {"Not", {Op::logical_not, 1, 1}}};
    if (function == "Integer" && arguments.size() == 1) return std::move(arguments.front());
    const auto found = functions.find(function);
    if (found == functions.end()) fail("unknown function " + function);
    if (arguments.size() < found->second.least || arguments.size() > found->second.most) {
      fail("wrong number of arguments of " + function);
    }
    return of(found->second.op, std::move(arguments));
  }

  /// One level of nesting.
  struct Level {
    explicit Level(Parser& owner) : parser(owner) {
      if (++parser.depth_ > max_depth) parser.fail("too many levels of nesting");
    }
    ~Level() { --parser.depth_; }
    Level(const Level&) = delete;
    Level& operator=(const Level&) = delete;
    Parser& parser;
  };

  const std::string& text_;
  std::size_t place_ = 0;
  std::size_t copied_ = 0;
  int depth_ = 0;
};

Expression Expression::parse(const std::string& text) {
  return Parser(text).run();
}

}  // namespace tutti::exported
