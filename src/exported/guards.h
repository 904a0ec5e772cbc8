#pragma once
// Checks inputs against a program: sizes fixed at export, ranges of sizes, equal sizes, and the conditions that the
// export recorded while it traced the model.
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
  /// `names` has the names of the user's inputs, including fixed ones, in the graph's order.
  Guards(const Program& program, const std::vector<std::string>& names);

  /// Throws UsageError, which names the input, the dimension, its value and the valid values.
  void check(std::span<const c10::IValue> inputs) const;

  /// Returns the conditions that check() includes, as Python expressions.
  std::vector<std::string> conditions() const;
  /// Returns the conditions that are not checked, because tutti cannot parse them.
  const std::vector<std::string>& unchecked() const { return unchecked_; }

 private:
  struct Size {
    std::optional<Expression> expression{};  ///< nullopt for a number
    std::int64_t number = 0;
  };
  struct InputSpec {
    std::string name{};
    Input::Kind kind = Input::Kind::user;
    std::vector<Size> sizes{};     ///< of a tensor
    std::optional<Size> number{};  ///< of an input that is a number
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
  /// `symbols`: true in the first pass, which finds the values of symbols.
  void check_size(const Size& size, std::int64_t value, const InputSpec& spec, std::optional<std::size_t> dimension,
                  SymbolValues& symbol_values, bool symbols) const;
  /// `value` is the value of the symbol if the dimension is `size`.
  void check_range(const std::string& symbol, std::int64_t value, std::int64_t size, const InputSpec& spec,
                   std::optional<std::size_t> dimension) const;

  std::vector<InputSpec> specs_{};
  std::map<std::string, Range> ranges_{};
  std::vector<Condition> conditions_{};
  std::vector<std::string> unchecked_{};
};

}  // namespace tutti::exported
