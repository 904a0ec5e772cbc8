#pragma once
// Arithmetic over symbolic sizes, as torch.export stores it: sympy's own form, "Add(Mul(Integer(2), Symbol('s0')),
// Integer(1))", or Python's, "2*s0 + 1 <= L['x'].size()[0]". Pure.
#include <cstdint>
#include <functional>
#include <optional>
#include <set>
#include <string>
#include <vector>

namespace tutti::exported {

class Expression {
 public:
  /// The value of a symbol or of a place like "L['x'].size()[0]"; nullopt where it is not known.
  using Lookup = std::function<std::optional<std::int64_t>(const std::string& name)>;

  /// Throws CheckpointError for what is none, or uses functions that are not known.
  static Expression parse(const std::string& text);

  /// nullopt where a name is not known; a comparison is 0 or 1. Throws UsageError where there is no result.
  std::optional<std::int64_t> evaluate(const Lookup& lookup) const;
  /// All symbols and places.
  std::set<std::string> names() const;
  /// Whether it is a symbol alone, whose name is in *names().begin().
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
  std::int64_t number_ = 0;
  std::string name_{};
  std::vector<Expression> operands_{};
};

}  // namespace tutti::exported
