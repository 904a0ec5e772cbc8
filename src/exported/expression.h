#pragma once
// Arithmetic over symbolic sizes in the two forms that torch.export stores: sympy's, "Add(Mul(Integer(2),
// Symbol('s0')), Integer(1))", and Python's, "2*s0 + 1 <= L['x'].size()[0]". No I/O.
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <set>
#include <string>
#include <vector>

namespace tutti::exported {

class Expression {
 public:
  /// Returns the value of a symbol or of a term like "L['x'].size()[0]"; nullopt if it is unknown.
  using Lookup = std::function<std::optional<std::int64_t>(const std::string& name)>;

  /// Throws CheckpointError if the text is not an expression or calls an unknown function.
  static Expression parse(const std::string& text);

  /// Returns nullopt if a name is unknown or a division is inexact. A comparison returns 0 or 1. Throws UsageError if
  /// the result does not exist or does not fit into 64 bits.
  std::optional<std::int64_t> evaluate(const Lookup& lookup) const;
  /// Returns all symbols and terms like "L['x'].size()[0]".
  std::set<std::string> names() const;
  /// Returns true if the expression is one name, *names().begin().
  bool is_name() const { return operation_ == Operation::name; }

 private:
  enum class Operation {
    number,
    name,
    add,
    multiply,
    divide,
    floor_divide,
    modulo,
    power,
    negate,
    max,
    min,
    equal,
    unequal,
    less,
    less_equal,
    greater,
    greater_equal,
    logical_and,
    logical_or,
    logical_not,
  };
  class Parser;

  Operation operation_ = Operation::number;
  int height_ = 0;
  std::size_t size_ = 1;  ///< number of expressions in the tree
  std::int64_t number_ = 0;
  std::string name_{};
  std::vector<Expression> operands_{};
};

}  // namespace tutti::exported
