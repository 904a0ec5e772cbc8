#pragma once
// What a program demands of its inputs: sizes that were fixed at the export, ranges, equal sizes, and the conditions
// that tracing met.
#include <ATen/core/ivalue.h>

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "exported/expression.h"
#include "exported/program.h"

namespace tutti::exported {

class Guards {
 public:
  /// `names` are those of the user's inputs, fixed ones included, in the graph's order.
  Guards(const Program& program, const std::vector<std::string>& names);

  /// Throws UsageError that names the input, the dimension, its value and what it should be.
  void check(std::span<const c10::IValue> inputs) const;

  /// Conditions that are written in a way that tutti does not understand, and so does not check.
  const std::vector<std::string>& unchecked() const { return unchecked_; }

 private:
  struct Size {
    std::optional<Expression> expression{};  ///< nullopt: the number
    std::int64_t number = 0;
  };
  struct InputSpec {
    std::string name{};
    Input::Kind kind = Input::Kind::user;
    std::vector<Size> sizes{};     ///< of a tensor
    std::optional<Size> number{};  ///< of a size that is given as a number
    c10::IValue fixed{};
  };
  struct Condition {
    std::string text{};
    Expression expression{};
  };
  using SymbolValues = std::map<std::string, std::int64_t>;

  static Size size_of(const SymInt& size);
  void add_condition(const std::string& text);
  bool is_known(const std::string& name) const;
  /// `symbols`: the first pass, which learns what symbols are.
  void check_size(const Size& size, std::int64_t value, const InputSpec& spec, std::optional<std::size_t> dimension,
                  SymbolValues& symbol_values, bool symbols) const;
  /// `size` is the dimension, and `value` what the symbol is then.
  void check_range(const std::string& symbol, std::int64_t value, std::int64_t size, const InputSpec& spec,
                   std::optional<std::size_t> dimension) const;

  std::vector<InputSpec> specs_{};
  std::map<std::string, Range> ranges_{};
  std::vector<Condition> conditions_{};
  std::vector<std::string> unchecked_{};
};

}  // namespace tutti::exported
